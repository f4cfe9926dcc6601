package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/console/lanes"
)

var functions = template.FuncMap{
	"decimal": decimal, "short": short, "clock": clock, "when": when, "money": lanes.Money, "detail": detail, "kind": kind,
	"tail": tail, "plural": plural, "dict": dict,
}

func number(n int) string { return strconv.Itoa(n) }

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(n) + " " + noun + "s"
}

func capped(n, most int) string {
	if n > most {
		return number(most) + "+"
	}
	return number(n)
}

func decimal(f float64) string {
	if f >= 100 || f == 0 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'f', 1, 64)
}

// short is a duration in three digits.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "−" + short(-d)
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 100*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < 100*time.Minute:
		return number(int(d.Minutes())) + " min"
	}
	return number(int(d.Hours())) + " h"
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

func when(t time.Time) string { return t.UTC().Format(time.DateTime) }

// detail is the members of a row in the order of their names.
func detail(d map[string]any) string {
	words := make([]string, 0, len(d))
	for _, name := range slices.Sorted(maps.Keys(d)) {
		text, err := json.Marshal(d[name])
		if err != nil {
			text = []byte(fmt.Sprint(d[name]))
		}
		words = append(words, name+"="+strings.Trim(string(text), `"`))
	}
	return strings.Join(words, "  ")
}

// kind is the class by which a status is coloured.
func kind(status any) string {
	switch fmt.Sprint(status) {
	case "succeeded", "done", "passed":
		return "good"
	case "failed", "dead", "dead letter", "quarantined":
		return "bad"
	case "pending", "running", "waiting":
		return "warn"
	}
	return "plain"
}

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
