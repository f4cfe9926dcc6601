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
)

// report prints what happened and the audit: as JSON on stdout, and then as text
// on stderr, or as text on stdout.
func (s *screen) report(seen evidence, audit Audit) error {
	var text strings.Builder
	summary(&text, seen)
	table(&text, audit)
	if !s.json {
		_, err := io.WriteString(s.stdout, text.String())
		return err
	}
	s.say("%s", strings.TrimSuffix(text.String(), "\n"))
	encoder := json.NewEncoder(s.stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(audit)
}

func summary(w *strings.Builder, seen evidence) {
	t, books, before := seen.tally, seen.books, seen.before
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-9s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintln(w)
	line("charges", "%d: %s", len(seen.records), endings(seen.records))
	line("refunds", "%s", refundEndings(seen.records))
	line("canceled", "%s", cancelEndings(seen.records))
	line("requests", "%d sent with a key: %d replayed, %d unanswered, %d told to try again; %d reused keys refused",
		t.requests.Load(), t.replays.Load(), t.unanswered.Load(), t.turnedAway.Load(), t.reused.Load())
	line("provider", "%d requests, %d duplicates suppressed; %d notifications taken, %d delivered again",
		books.Requests-before.Requests, seen.suppressed(), len(books.Notifications)-len(before.Notifications), seen.redelivered())
	line("webhooks", "%d events of the provider, sent again %d times in all", seen.repeated.Events, seen.repeated.Sent)
	line("broken", "%s", breakages(seen.strikes))
	line("time", "%s from the first request to the last answer", seen.took.Round(100*time.Millisecond))
	fmt.Fprintln(w)
}

func endings(records []record) string {
	counts := map[string]int{}
	for _, r := range records {
		counts[r.final.end()]++
	}
	return enumerate(counts)
}

func refundEndings(records []record) string {
	counts := map[string]int{}
	n := 0
	for _, r := range records {
		for _, refund := range r.refunds {
			n++
			end := refund.end()
			if refund.id == "" && end != "" {
				end = "refused"
			}
			counts[end]++
		}
	}
	return fmt.Sprintf("%d: %s", n, enumerate(counts))
}

func cancelEndings(records []record) string {
	asked, done, first := 0, 0, 0
	for _, r := range records {
		switch {
		case !r.charge.Cancel:
			continue
		case r.final.end() == canceled:
			done++
		case r.final.captured():
			first++
		}
		asked++
	}
	return fmt.Sprintf("%d of %d that were to be, %d captured first", done, asked, first)
}

func enumerate(counts map[string]int) string {
	var parts []string
	for _, end := range slices.Sorted(maps.Keys(counts)) {
		name := end
		if name == "" {
			name = "not seen to end"
		}
		parts = append(parts, fmt.Sprintf("%d %s", counts[end], name))
	}
	return strings.Join(parts, ", ")
}

func breakages(done strikes) string {
	text := fmt.Sprintf("%s %s (%d with charges under way), %s %s, ",
		plural(done.workerKills, "worker"), done.blow, done.killsUnderWay, plural(done.apiKills, "api"), done.blow)
	if done.notRun {
		return text + "restart of the database not run"
	}
	return text + fmt.Sprintf("database restarted in %s", done.restarted.Round(time.Millisecond))
}

func table(w *strings.Builder, audit Audit) {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(columns, "CHECK\tCHECKED\tVIOLATED\tRESULT")
	for _, check := range audit.Checks {
		fmt.Fprintf(columns, "%s\t%d\t%d\t%s\n", check.Name, check.Checked, check.Violated, check.result())
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

func (c Check) result() string {
	switch {
	case c.Violated > 0:
		return "VIOLATED"
	case c.notRun:
		return errNotRun.Error()
	}
	return "ok"
}

// printable keeps what comes from elsewhere from writing over the table.
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
	return string(encode(example))
}
