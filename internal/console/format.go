package console

import (
	"fmt"
	"html/template"
	"time"

	"github.com/payonce/payonce/internal/console/lanes"
)

var functions = template.FuncMap{
	"short": lanes.Span, "plural": lanes.Plural, "money": lanes.Money, "clock": clock, "when": when, "tail": tail, "dict": dict,
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

func when(t time.Time) string { return t.UTC().Format(time.DateTime) }

// tail is the end of an ID, which tells it from its neighbours.
func tail(id string) string {
	if runes := []rune(id); len(runes) > 12 {
		return "…" + string(runes[len(runes)-8:])
	}
	return id
}

// dict makes a map of names and values, for a template that needs several.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}
