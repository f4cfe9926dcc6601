package timeline

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// WriteTable writes the timeline for people: the charges, then a line per entry.
func (t Timeline) WriteTable(w io.Writer) error {
	for _, c := range t.Charges {
		status := string(c.Status)
		if status == "" {
			status = "not readable"
		}
		if _, err := fmt.Fprintf(w, "%s  %s  %d %s  merchant %s  order %s\n",
			c.ID, status, c.Amount, c.Currency, c.MerchantID, word(c.OrderID)); err != nil {
			return fmt.Errorf("write the timeline: %w", err)
		}
	}
	several := len(t.Charges) > 1
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	header := []string{"WHEN (UTC)", "KIND", "WHAT", "WHO", "DETAIL"}
	if several {
		header = slices.Insert(header, 1, "CHARGE")
	}
	fmt.Fprintln(table, strings.Join(header, "\t"))
	for _, e := range t.Entries {
		what := e.What
		if e.Version > 0 {
			what = fmt.Sprintf("%d %s", e.Version, e.What)
		}
		line := []string{when(e.At), string(e.Kind), word(what), word(e.Who), e.details()}
		if several {
			line = slices.Insert(line, 1, e.ChargeID)
		}
		fmt.Fprintln(table, strings.Join(line, "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the timeline: %w", err)
	}
	return nil
}

func when(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05.000") }

// details are the members in the order of their names.
func (e Entry) details() string {
	words := make([]string, 0, len(e.Detail))
	for _, name := range slices.Sorted(maps.Keys(e.Detail)) {
		words = append(words, name+"="+quoted(e.Detail[name]))
	}
	return strings.Join(words, " ")
}

func quoted(value any) string {
	var text string
	switch value := value.(type) {
	case time.Time:
		return value.UTC().Format(time.RFC3339)
	case []string:
		text = strings.Join(value, ", ")
	default:
		text = fmt.Sprint(value)
	}
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r == ' ' || r == '"' || r == '=' || !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// word keeps what others have chosen, such as an order's id, from writing over
// the table.
func word(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
