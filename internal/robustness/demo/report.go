package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// report prints what happened and the audit: as JSON on stdout and as text on
// stderr, or as text on stdout.
func (r *run) report(audit harness.Audit) error {
	var text strings.Builder
	r.summary(&text)
	table(&text, audit)
	if !r.JSON {
		_, err := io.WriteString(r.Stdout, text.String())
		return err
	}
	r.say("%s", strings.TrimSuffix(text.String(), "\n"))
	return printJSON(r.Stdout, audit)
}

func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func (r *run) summary(w io.Writer) {
	charges, refunds := map[string]int{}, map[string]int{}
	for _, c := range r.sent {
		charges[c.outcome()]++
		for _, refund := range c.refunds {
			outcome := refund.outcome()
			if refund.ID == "" && outcome != "" {
				outcome = "refused"
			}
			refunds[outcome]++
		}
	}
	fmt.Fprintf(w, "\ncharges   %s\n", enumerate(charges))
	fmt.Fprintf(w, "refunds   %s\n", enumerate(refunds))
	fmt.Fprintf(w, "requests  %d sent with a key: %d replayed, %d unanswered, %d refused as retryable\n",
		r.Requests.Load(), r.Replays.Load(), r.Unanswered.Load(), r.TurnedAway.Load())
	fmt.Fprintf(w, "provider  %d requests, %d duplicates suppressed; %d webhooks received, %d redelivered\n",
		r.books.Requests-r.before.Requests, r.suppressed(), len(r.books.Notifications)-len(r.before.Notifications), r.redelivered())
	fmt.Fprintf(w, "webhooks  %d events of the provider, sent again %d times in all\n", r.repeated.Events, r.repeated.Sent)
	fmt.Fprintf(w, "broken    %s\n", r.broken())
	fmt.Fprintf(w, "time      %s from the first request to the last answer\n\n", r.took.Round(100*time.Millisecond))
}

func enumerate(counts map[string]int) string {
	var parts []string
	n := 0
	for _, outcome := range slices.Sorted(maps.Keys(counts)) {
		n += counts[outcome]
		name := outcome
		if name == "" {
			name = "not seen to end"
		}
		parts = append(parts, fmt.Sprintf("%d %s", counts[outcome], name))
	}
	return fmt.Sprintf("%d: %s", n, strings.Join(parts, ", "))
}

func table(w io.Writer, audit harness.Audit) {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(columns, "CHECK\tCHECKED\tVIOLATED\tRESULT")
	for _, check := range audit.Checks {
		result := "ok"
		if check.Violated > 0 {
			result = "VIOLATED"
		} else if check.NotRun {
			result = "not run"
		}
		fmt.Fprintf(columns, "%s\t%d\t%d\t%s\n", check.Name, check.Checked, check.Violated, result)
	}
	_ = columns.Flush() // a strings.Builder takes everything
	for _, check := range audit.Checks {
		if check.Violated > 0 {
			fmt.Fprintf(w, "\n%s, for example\n", check.Name)
			for _, example := range check.Examples {
				fmt.Fprintf(w, "  %s\n", strings.ReplaceAll(describe(example), "\n", "\n  "))
			}
		}
	}
	if audit.OK {
		fmt.Fprintln(w, "\nevery promise held")
	} else {
		fmt.Fprintln(w, "\nnot every promise held")
	}
}

// describe is an example of a violation. Text of other programs does not write over the table.
func describe(example any) string {
	text, ok := example.(string)
	if !ok {
		encoded, err := json.Marshal(example)
		if err != nil {
			return err.Error()
		}
		text = string(encoded)
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// plural counts in words.
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
