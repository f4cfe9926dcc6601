package demo

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// What a client sees and the audit does not: answers, and the records of the merchant's receiver.
const (
	oneAnswer     = "observed: one answer per key, byte for byte"
	endsAsPlanned = "observed: every charge and refund ends as planned"
	notifiedOnce  = "observed: the merchant is notified of each outcome once"
	webhooksAgain = "observed: repeated webhooks change nothing"
	allFaults     = "chaos: every fault happened, and no program ended without a kill"
)

// leastWorkerKills is how many workers must have been killed for a run to prove something.
const leastWorkerKills = 10

// evidence is what was observed of a run.
type evidence struct {
	sent                []*charge
	books               harness.Books
	repeated            harness.Repeated
	events, eventsAgain int      // of the charges, before and after the webhooks were repeated
	losses              []string // programs that ended and were not killed

	workers, apis atomic.Int64 // killed
	busy          int          // workers killed while work was in flight
	restarted     atomic.Int64 // the duration of the last restart of the database, 0 without one
	noRestart     bool         // the server is another's
}

// since returns what a sandbox, which may be another's, has seen after an earlier observation.
func since(first, last harness.Books) harness.Books {
	last.Requests -= first.Requests
	last.DuplicatesSuppressed -= first.DuplicatesSuppressed
	last.Notifications = last.Notifications[min(len(first.Notifications), len(last.Notifications)):]
	return last
}

// verdict checks what the audit cannot see of a run.
func (e *evidence) verdict() []harness.Check {
	answers, ends := harness.Check{Name: oneAnswer}, harness.Check{Name: endsAsPlanned}
	notices, again := harness.Check{Name: notifiedOnce}, harness.Check{Name: webhooksAgain}
	faults := harness.Check{Name: allFaults}
	received := map[string][]harness.Notification{}
	for _, n := range e.books.Notifications {
		received[n.Reference] = append(received[n.Reference], n)
	}
	for _, c := range e.sent {
		for _, r := range c.requests() {
			different := func(a harness.Answer) bool { return a != r.answers[0] }
			alike := len(r.answers) >= 3 && !slices.ContainsFunc(r.answers, different)
			answers.Expect(alike || r.answers == nil && r.ID != "", "%s: answered %+v", r.key, r.answers)
			right := slices.Contains(strings.Fields(r.wanted), r.outcome()) && (r.amount == 0 || r.ID == "" || r.Amount == r.amount)
			ends.Expect(right, "%s: %q, %+v, should be %s of %d", r.key, r.outcome(), r.made, strings.ReplaceAll(r.wanted, " ", " or "), r.amount)
			if r.amount > 0 && r.hasEnded() {
				expectNotice(&notices, r, received[r.ID])
			}
		}
	}
	again.Expect(e.events > 0 && e.events == e.eventsAgain, "%d events, then %d", e.events, e.eventsAgain)
	faults.Expect(e.workers.Load() >= leastWorkerKills, "%d workers were killed, should be %d", e.workers.Load(), leastWorkerKills)
	faults.Expect(e.busy > 0, "no worker was killed while a charge or refund was in flight")
	faults.Expect(e.apis.Load() > 0, "no api was killed")
	if !e.noRestart {
		faults.Expect(e.restarted.Load() > 0, "the database was not restarted")
	}
	// Only faults cause these: requests that the provider had carried out before, and webhooks
	// that the shop had accepted before.
	faults.Expect(e.books.DuplicatesSuppressed+e.books.Redelivered() > 0, "neither the provider nor the shop was asked again")
	faults.Expect(e.repeated.Sent > 0 && e.repeated.Sent == e.repeated.Delivered, "of the provider's webhooks sent again: %+v", e.repeated)
	faults.Expect(len(e.losses) == 0, "%s", strings.Join(e.losses, "\n"))
	return []harness.Check{answers, ends, notices, again, faults}
}

// expectNotice wants the merchant to have been notified of the outcome once.
func expectNotice(notices *harness.Check, r *request, received []harness.Notification) {
	outcome := failed
	if r.outcome() == succeeded {
		outcome = succeeded
	}
	outcome = strings.TrimSuffix(path.Base(r.path), "s") + "." + outcome
	once := len(received) == 1 && received[0].Type == outcome && received[0].Effects == 1 && received[0].Deliveries >= 1
	notices.Expect(once, "%s: notified %+v, should be of %s once", r.ID, received, outcome)
}

// summary is what happened.
func (d *Demo) summary() string {
	charges, refunds := map[string]int{}, map[string]int{}
	for _, c := range d.sent {
		charges[c.outcome()]++
		for _, next := range c.follow {
			if next.amount > 0 {
				refunds[next.outcome()]++
			}
		}
	}
	return fmt.Sprintf(`
charges   %s
refunds   %s
requests  %d sent with a key: %d replayed, %d unanswered, %d refused as retryable
provider  %d requests, %d duplicates suppressed; %d webhooks received, %d redelivered
webhooks  %d events of the provider, sent again %d times in all
`, enumerate(charges), enumerate(refunds),
		d.Requests.Load(), d.Replays.Load(), d.Unanswered.Load(), d.TurnedAway.Load(),
		d.books.Requests, d.books.DuplicatesSuppressed, len(d.books.Notifications), d.books.Redelivered(),
		d.repeated.Events, d.repeated.Sent)
}

// enumerate counts outcomes. Of a refusal it shows the last part of the problem's type.
func enumerate(outcomes map[string]int) string {
	var parts []string
	n := 0
	for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
		n += outcomes[outcome]
		parts = append(parts, fmt.Sprintf("%d %s", outcomes[outcome], path.Base(cmp.Or(outcome, "not seen to end"))))
	}
	return fmt.Sprintf("%d: %s", n, strings.Join(parts, ", "))
}

// broken is what was broken so far.
func (d *Demo) broken() string {
	text := fmt.Sprintf("%s %s, %s %s", plural(d.workers.Load(), "worker"), d.killed, plural(d.apis.Load(), "api"), d.killed)
	if took := time.Duration(d.restarted.Load()); took > 0 {
		text += ", database restarted in " + took.Round(time.Millisecond).String()
	} else if d.noRestart {
		text += ", restart of the database not run"
	}
	return text
}

// plural counts in words.
func plural[N int | int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
