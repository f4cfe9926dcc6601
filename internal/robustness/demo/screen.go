package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"

	"github.com/payonce/payonce/internal/robustness/traffic"
	"github.com/payonce/payonce/internal/robustness/validate"
)

// screen is all that the demo prints.
type screen struct {
	json   bool
	stdout io.Writer // the result
	stderr io.Writer // everything else
	now    func() time.Time
}

// say prints a line. An error of stderr does not end the demo.
func (s *screen) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.stderr, format+"\n", args...)
}

// progress shows how many charges have ended, until stop is called: on a terminal
// in one line that changes, elsewhere in a line now and then.
func (s *screen) progress(tally *traffic.Tally, charges int, broken func() validate.Chaos) (stop func()) {
	pause, begin, end := 3*time.Second, "", "\n"
	if file, ok := s.stderr.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		pause, begin, end = 200*time.Millisecond, "\r\x1b[K", ""
	}
	said := ""
	show := func() {
		line := fmt.Sprintf("%d of %d charges ended; %s", tally.Ended.Load(), charges, trouble(broken()))
		if line != said {
			_, _ = fmt.Fprint(s.stderr, begin, line, end)
		}
		said = line
	}
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(pause)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				show()
			case <-stopped:
				show()
				if end == "" {
					s.say("")
				}
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(stopped); <-done })
}

// trouble is what was broken so far.
func trouble(c validate.Chaos) string {
	text := plural(c.WorkerKills, "worker") + " " + c.Killed
	if c.APIKills > 0 {
		text += ", " + plural(c.APIKills, "api") + " " + c.Killed
	}
	if c.Restarted > 0 {
		text += ", database restarted"
	}
	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// report prints what happened and the audit: as JSON on stdout and as text on
// stderr, or as text on stdout.
func (s *screen) report(r *run, audit validate.Audit) error {
	var text strings.Builder
	summary(&text, r)
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

func summary(w *strings.Builder, r *run) {
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
	line("requests", "%d sent with a key: %d replayed, %d unanswered, %d told to try again; %d reused keys refused",
		t.Requests.Load(), t.Replays.Load(), t.Unanswered.Load(), t.TurnedAway.Load(), t.Reused.Load())
	line("provider", "%d requests, %d duplicates suppressed; %d notifications taken, %d delivered again",
		r.Books.Requests-r.Before.Requests, r.Suppressed(), len(r.Books.Notifications)-len(r.Before.Notifications), r.Redelivered())
	line("webhooks", "%d events of the provider, sent again %d times in all", r.Repeated.Events, r.Repeated.Sent)
	line("broken", "%s", breakages(r.Chaos))
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

func breakages(c validate.Chaos) string {
	text := fmt.Sprintf("%s %s (%d with charges under way), %s %s, ",
		plural(c.WorkerKills, "worker"), c.Killed, c.KillsInFlight, plural(c.APIKills, "api"), c.Killed)
	if c.NotRun {
		return text + "restart of the database not run"
	}
	return text + fmt.Sprintf("database restarted in %s", c.Restarted.Round(time.Millisecond))
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
