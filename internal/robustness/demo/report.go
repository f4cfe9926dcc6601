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
	encoder := json.NewEncoder(r.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(audit)
}

func (r *run) summary(w *strings.Builder) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	charges, refunds, toCancel := map[string]int{}, map[string]int{}, map[string]int{}
	asked, n := 0, 0
	for _, record := range r.records {
		charges[record.final.outcome()]++
		if record.charge.cancel {
			asked++
			toCancel[record.final.outcome()]++
		}
		n += len(record.refunds)
		for _, refund := range record.refunds {
			outcome := refund.outcome()
			if refund.ID == "" && outcome != "" {
				outcome = "refused"
			}
			refunds[outcome]++
		}
	}
	fmt.Fprintln(w)
	line("charges", "%d: %s", len(r.records), enumerate(charges))
	line("refunds", "%d: %s", n, enumerate(refunds))
	line("canceled", "%d of %d that were to be, %d captured first", toCancel[canceled], asked, toCancel[succeeded])
	line("requests", "%d sent with a key: %d replayed, %d unanswered, %d refused as retryable; %d reused keys refused",
		r.Requests.Load(), r.Replays.Load(), r.Unanswered.Load(), r.TurnedAway.Load(), r.reused.Load())
	line("provider", "%d requests, %d duplicates suppressed; %d webhooks received, %d redelivered",
		r.books.Requests-r.before.Requests, r.suppressed(), len(r.books.Notifications)-len(r.before.Notifications), r.redelivered())
	line("webhooks", "%d events of the provider, sent again %d times in all", r.repeated.Events, r.repeated.Sent)
	line("broken", "%s", r.broken())
	line("time", "%s from the first request to the last answer", r.took.Round(100*time.Millisecond))
	fmt.Fprintln(w)
}

func enumerate(counts map[string]int) string {
	var parts []string
	for _, outcome := range slices.Sorted(maps.Keys(counts)) {
		name := outcome
		if name == "" {
			name = "not seen to end"
		}
		parts = append(parts, fmt.Sprintf("%d %s", counts[outcome], name))
	}
	return strings.Join(parts, ", ")
}

func table(w *strings.Builder, audit harness.Audit) {
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
		if check.Violated == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s, for example\n", check.Name)
		for _, example := range check.Examples {
			for line := range strings.Lines(describe(example)) {
				fmt.Fprintf(w, "  %s\n", strings.Map(printable, strings.TrimRight(line, "\n")))
			}
		}
	}
	if audit.OK {
		fmt.Fprintln(w, "\nevery promise held")
	} else {
		fmt.Fprintln(w, "\nnot every promise held")
	}
}

// printable keeps text of other programs from writing over the table.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

func describe(example any) string {
	if text, ok := example.(string); ok {
		return text
	}
	text, err := json.Marshal(example)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
