package console

import (
	"fmt"
	"html/template"
	"time"

	"github.com/payonce/payonce/internal/console/lanes"
)

var functions = template.FuncMap{
	"short": lanes.Span, "plural": lanes.Plural, "money": lanes.Money, "clock": clock, "when": when, "dict": dict,
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

func when(t time.Time) string { return t.UTC().Format(time.DateTime) }

// dict makes a map of names and values, for a template that needs several.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}
