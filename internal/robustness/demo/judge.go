package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// What a client sees and the audit does not: answers, and the records of the merchant's receiver.
const (
	oneAnswer     = "observed: one answer per key, byte for byte"
	endsAsPlanned = "observed: every charge and refund ends as planned"
	notifiedOnce  = "observed: the merchant is notified of each outcome once"
	webhooksAgain = "observed: repeated webhooks change nothing"
)

// leastWorkerKills is how many workers must have been killed for a run to prove something.
const leastWorkerKills = 10

// evidence is what was observed of a run.
type evidence struct {
	sent          []*charge     // those of the plan, and of the lab
	before, books harness.Books // before the first charge, and in the end
	repeated      harness.Repeated
	events, added int // of the charges, and by the repeated webhooks
	chaos         chaos
}

// chaos is what was broken.
type chaos struct {
	struck    map[string]int // actions, by name
	inFlight  int            // killed workers while charges were in flight
	restarted time.Duration  // how long the last restart of the database took
	notRun    bool           // the database cannot be restarted here
	losses    []string       // programs that ended and were not killed
	programs  int            // all of the demo's own
}

// suppressed is how many requests the provider answered from its record.
func (e *evidence) suppressed() int {
	return e.books.DuplicatesSuppressed - e.before.DuplicatesSuppressed
}

// redelivered is how many webhooks were delivered beyond the first time.
func (e *evidence) redelivered() int { return e.books.Redelivered() - e.before.Redelivered() }

// happened checks what happened so often.
func happened(name string, times int, holds bool, complaint string, args ...any) harness.Check {
	c := harness.Check{Name: name}
	c.Expect(holds, complaint, args...)
	c.Checked = times
	return c
}

// verdict checks what the audit cannot see of a run in which programs were killed, or the like.
func (e *evidence) verdict(killed string) []harness.Check {
	answers, ends := harness.Check{Name: oneAnswer}, harness.Check{Name: endsAsPlanned}
	notices := harness.Check{Name: notifiedOnce}
	for _, c := range e.sent {
		for _, r := range c.requests() {
			outside := r.ID != "" && r.answers == nil // made in the provider's dashboard
			answers.Expect(outside || r.isAnsweredAlike(), "%s: answered %+v", r.key, r.answers)
			right := slices.Contains(strings.Fields(r.wanted), r.outcome()) && (r.makes == "" || r.ID == "" || r.Amount == r.amount)
			ends.Expect(right, "%s: %q, %+v, should be %s of %d", r.key, r.outcome(), r.made, strings.ReplaceAll(r.wanted, " ", " or "), r.amount)
			if r.makes != "" && r.hasEnded() {
				e.expectNotice(&notices, r)
			}
		}
	}
	c, sent := &e.chaos, e.repeated.Sent
	workers, apis := c.struck[killWorker], c.struck[killAPI]
	restarted := happened("chaos: database restarted at once", 1, c.notRun || c.struck[restartDatabase] > 0, "it was not restarted")
	if c.notRun {
		restarted.Checked, restarted.NotRun, restarted.Examples = 0, true, []string{"not run"}
	}
	// Only faults cause these: requests that the provider had carried out before, and webhooks
	// that the shop had accepted before.
	again := e.suppressed() + e.redelivered()
	ended := happened("chaos: nothing ended that was not killed", c.programs, len(c.losses) == 0, "%s", strings.Join(c.losses, "\n"))
	ended.NotRun = c.programs == 0
	return []harness.Check{
		answers, ends, notices,
		happened(webhooksAgain, e.events, e.events > 0 && e.added == 0, "%d events, then %d more", e.events, e.added),
		happened("chaos: workers "+killed+" while charges flow", workers, workers >= leastWorkerKills && c.inFlight > 0,
			"%d, should be %d; while a charge was in flight %d, should be 1", workers, leastWorkerKills, c.inFlight),
		happened("chaos: an api "+killed, apis, apis > 0, "none"),
		restarted,
		happened("chaos: provider and shop asked again after faults", again, again > 0, "none"),
		happened("chaos: webhooks of the provider sent again", sent, sent > 0 && sent == e.repeated.Delivered, "%d were taken", e.repeated.Delivered),
		ended,
	}
}

// isAnsweredAlike says whether all answers are one. A charge is always accepted.
func (r *request) isAnsweredAlike() bool {
	different := func(a harness.Answer) bool { return a != r.answers[0] }
	alike := len(r.answers) >= 3 && !slices.ContainsFunc(r.answers, different)
	return alike && (r.makes != "charge" || r.answers[0].Status == http.StatusAccepted)
}

// expectNotice wants the merchant to have been notified of the outcome once.
func (e *evidence) expectNotice(notices *harness.Check, r *request) {
	outcome := r.makes + "." + failed
	if r.outcome() == succeeded {
		outcome = r.makes + "." + succeeded
	}
	received := slices.DeleteFunc(slices.Clone(e.books.Notifications), func(n harness.Notification) bool { return n.Reference != r.ID })
	once := len(received) == 1 && received[0].Type == outcome && received[0].Effects == 1 && received[0].Deliveries >= 1
	notices.Expect(once, "%s: notified %+v, should be %s once", r.ID, received, outcome)
}

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

// columns prints a line for each item under a header.
func columns[T any](w io.Writer, header string, items []T, line func(T) []any) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, header)
	for _, item := range items {
		cells := line(item)
		fmt.Fprintf(table, strings.Repeat("\t%v", len(cells))[1:]+"\n", cells...)
	}
	return table.Flush()
}

func table(w io.Writer, audit harness.Audit) {
	_ = columns(w, "CHECK\tCHECKED\tVIOLATED\tRESULT", audit.Checks, func(c harness.Check) []any { // a strings.Builder takes everything
		result := "ok"
		if c.Violated > 0 {
			result = "VIOLATED"
		} else if c.NotRun {
			result = "not run"
		}
		return []any{c.Name, c.Checked, c.Violated, result}
	})
	for _, check := range audit.Red() {
		fmt.Fprintf(w, "\n%s, for example\n", check.Name)
		for _, example := range check.Examples {
			fmt.Fprintf(w, "  %s\n", strings.ReplaceAll(example, "\n", "\n  "))
		}
	}
	fmt.Fprintf(w, "\n%s promise held\n", map[bool]string{true: "every", false: "not every"}[audit.OK])
}

// plural counts in words.
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
