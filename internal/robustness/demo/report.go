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

	"github.com/payonce/payonce/internal/robustness/traffic"
	"github.com/payonce/payonce/internal/robustness/validate"
)

// report prints what happened and the audit: as JSON on stdout and as text on
// stderr, or as text on stdout.
func (r *run) report(audit validate.Audit) error {
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
	charges, refunds, n := map[string]int{}, map[string]int{}, 0
	asked, canceled, captured := 0, 0, 0
	for _, record := range r.Records {
		charges[record.Final.Outcome()]++
		if record.Charge.Cancel {
			asked++
			if record.Final.Outcome() == traffic.Canceled {
				canceled++
			} else if record.Final.Captured() {
				captured++
			}
		}
		for _, refund := range record.Refunds {
			n++
			outcome := refund.Outcome()
			if refund.ID == "" && outcome != "" {
				outcome = "refused"
			}
			refunds[outcome]++
		}
	}
	t := &r.tally
	fmt.Fprintln(w)
	line("charges", "%d: %s", len(r.Records), enumerate(charges))
	line("refunds", "%d: %s", n, enumerate(refunds))
	line("canceled", "%d of %d that were to be, %d captured first", canceled, asked, captured)
	line("requests", "%d sent with a key: %d replayed, %d unanswered, %d refused as retryable; %d reused keys refused",
		t.Requests.Load(), t.Replays.Load(), t.Unanswered.Load(), t.TurnedAway.Load(), t.Reused.Load())
	line("provider", "%d requests, %d duplicates suppressed; %d webhooks received, %d redelivered",
		r.Books.Requests-r.Before.Requests, r.Suppressed(), len(r.Books.Notifications)-len(r.Before.Notifications), r.Redelivered())
	line("webhooks", "%d events of the provider, sent again %d times in all", r.Repeated.Events, r.Repeated.Sent)
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

func table(w *strings.Builder, audit validate.Audit) {
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
