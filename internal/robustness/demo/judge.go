package demo

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// evidence is what was observed of a run.
type evidence struct {
	plan     plan
	records  []record
	before   harness.Books // before the first charge
	books    harness.Books
	repeated harness.Repeated // the provider's webhooks
	chaos    chaos
}

// chaos is what was broken while charges flowed.
type chaos struct {
	killed                  string        // what happens to a program: killed, or cut off the database
	workers, inFlight, apis int           // killed; inFlight are workers while charges were in flight
	restarted               time.Duration // how long the restart of the database took; 0 is never
	notRun                  bool          // the database could not be restarted here
	losses                  []string      // programs that ended and were not killed
	programs                int           // all of the demo's own
}

// suppressed is how many requests the provider answered from its record.
func (e evidence) suppressed() int {
	return e.books.DuplicatesSuppressed - e.before.DuplicatesSuppressed
}

// redelivered is how many webhooks were delivered beyond the first time.
func (e evidence) redelivered() int { return e.books.Redelivered() - e.before.Redelivered() }

// What a client sees and the audit does not: answers, and the records of the merchant's receiver.
const (
	oneAnswer       = "observed: one answer per key, byte for byte"
	reusedKey       = "observed: a used key refuses another body"
	endsAsPlanned   = "observed: every charge ends as planned"
	notifiedOnce    = "observed: the merchant is notified of each outcome once"
	webhooksAgain   = "observed: repeated webhooks change nothing"
	cancellation    = "observed: a cancellation has one answer, and the charge keeps it"
	refundAnswer    = "observed: one answer per refund, byte for byte"
	refundEnds      = "observed: every refund ends as planned"
	showsRefunded   = "observed: every charge shows what was refunded"
	scarceStockSold = "observed: scarce stock sells out and not twice"
)

// judge makes the checks of a run.
type judge struct {
	evidence

	checks   []harness.Check
	notified map[string][]harness.Notification // by charge or refund
}

// verdict checks what the audit cannot see of a run. Every charge of the plan has a record, so a
// run that shows nothing is violated.
func (e evidence) verdict() []harness.Check {
	j := &judge{evidence: e, notified: map[string][]harness.Notification{}}
	for _, n := range e.books.Notifications {
		j.notified[n.Reference] = append(j.notified[n.Reference], n)
	}
	for _, name := range []string{
		oneAnswer, reusedKey, endsAsPlanned, notifiedOnce, webhooksAgain, cancellation, refundAnswer, refundEnds, showsRefunded, scarceStockSold,
	} {
		j.check(name)
	}
	sold, wanted := 0, 0
	for _, r := range e.records {
		j.judgeCharge(r)
		j.judgeCancellation(r)
		j.judgeRefunds(r)
		if r.charge.isScarce() {
			wanted++
			if r.final.outcome() == succeeded {
				sold++
			}
		}
	}
	if stock, ours := e.plan.stock[scarceSKU]; ours {
		j.count(scarceStockSold, wanted, sold == min(wanted, stock), "%d wanted, %d in stock, %d sold", wanted, stock, sold)
	}
	j.judgeChaos()
	return j.checks
}

// check is the check of a promise.
func (j *judge) check(name string) *harness.Check {
	i := slices.IndexFunc(j.checks, func(c harness.Check) bool { return c.Name == name })
	if i < 0 {
		i, j.checks = len(j.checks), append(j.checks, harness.Check{Name: name, Examples: []any{}})
	}
	return &j.checks[i]
}

// expect examines one case of a promise.
func (j *judge) expect(name string, holds bool, complaint string, args ...any) {
	j.check(name).Expect(holds, complaint, args...)
}

// count is for what happened so often.
func (j *judge) count(name string, happened int, holds bool, complaint string, args ...any) {
	c := j.check(name)
	c.Expect(holds, complaint, args...)
	c.Checked = happened
}

// alike reports whether all requests, three or more, were answered with the same.
func alike(answers []harness.Answer) bool {
	return len(answers) >= 3 && !slices.ContainsFunc(answers, func(a harness.Answer) bool { return a != answers[0] })
}

func (j *judge) judgeCharge(r record) {
	c, key := r.charge, r.charge.key
	j.expect(oneAnswer, alike(r.answers) && r.answers[0].Status == http.StatusAccepted, "%s: answered %+v", key, r.answers)
	if c.reuse {
		refused := len(r.reuse) == 1 && r.reuse[0].Status == http.StatusUnprocessableEntity && r.reuse[0].Problem() == "/problems/idempotency-key-reused"
		j.expect(reusedKey, refused, "%s: answered %+v", key, r.reuse)
	}
	j.expect(endsAsPlanned, r.final.ended() && slices.Contains(c.outcomes, r.final.outcome()) && r.final.Amount == c.amount && r.final.Currency == c.currency,
		"%s %s: %+v, should be %s of %d %s", c.order, r.id, r.final, strings.Join(c.outcomes, " or "), c.amount, c.currency)
	j.expect(webhooksAgain, len(r.events) > 0 && slices.Equal(r.events, r.later), "%s: %d events, later %d", r.id, len(r.events), len(r.later))
	outcome := "charge.succeeded"
	if r.final.Status == failed {
		outcome = "charge.failed"
	}
	j.expectNotified(r.id, outcome)
}

// expectNotified: the merchant received an outcome once or more often, and acted once.
func (j *judge) expectNotified(reference, outcome string) {
	n := j.notified[reference]
	j.expect(notifiedOnce, len(n) == 1 && n[0].Type == outcome && n[0].Effects == 1 && n[0].Deliveries >= 1, "%s: notified %+v, should be %s once", reference, n, outcome)
}

// judgeCancellation: a charge whose cancellation was accepted may still be captured, but one whose
// cancellation was refused is never canceled.
func (j *judge) judgeCancellation(r record) {
	if !r.charge.cancel {
		return
	}
	holds := alike(r.cancel)
	if holds && r.cancel[0].Status == http.StatusAccepted {
		holds = r.cancel[0].Location == "/v1/charges/"+r.id
	} else if holds {
		holds = r.cancel[0].Status == http.StatusConflict && r.cancel[0].Problem() == notCaptured && r.final.outcome() != canceled
	}
	j.expect(cancellation, holds, "%s: %q after the answers %+v", r.id, r.final.outcome(), r.cancel)
}

// judgeRefunds also compares what a charge shows with its refunds.
func (j *judge) judgeRefunds(r record) {
	sum := int64(0)
	for _, refund := range r.refunds {
		plan := refund.refund
		j.expect(refundAnswer, alike(refund.answers) || plan.outside, "%s: answered %+v", plan.key, refund.answers)
		j.expect(refundEnds, slices.Contains(plan.outcomes, refund.outcome()) && (!refund.ended() || refund.Amount == plan.amount),
			"%s of %s: %q of %d, should be %s of %d", plan.key, r.id, refund.outcome(), refund.Amount, strings.Join(plan.outcomes, " or "), plan.amount)
		if refund.ended() {
			j.expectNotified(refund.ID, "refund."+refund.Status)
		}
		if refund.Status == succeeded {
			sum += refund.Amount
		}
	}
	j.expect(showsRefunded, r.final.AmountRefunded == sum && sum <= r.charge.amount && (r.final.Status == "refunded") == (sum == r.charge.amount) &&
		(r.final.Status == "partially_refunded") == (0 < sum && sum < r.charge.amount), "%s of %d: %d refunded, but it shows %+v", r.id, r.charge.amount, sum, r.final)
}

// leastWorkerKills is how many workers must have been killed for a run to prove something.
const leastWorkerKills = 10

// judgeChaos checks that faults really happened, and no other.
func (j *judge) judgeChaos() {
	c := j.chaos
	j.count("chaos: workers "+c.killed+" while charges flow", c.workers, c.workers >= leastWorkerKills && c.inFlight > 0,
		"%d, should be %d; while a charge was in flight %d, should be 1", c.workers, leastWorkerKills, c.inFlight)
	j.count("chaos: an api "+c.killed, c.apis, c.apis > 0, "none")
	const database = "chaos: database restarted at once"
	if j.expect(database, c.notRun || c.restarted > 0, "it was not restarted"); c.notRun {
		*j.check(database) = harness.Check{Name: database, NotRun: true, Examples: []any{"not run"}}
	}
	// Only faults cause these: requests that the provider had carried out before, and webhooks
	// that the shop had accepted before.
	again := j.suppressed() + j.redelivered()
	j.count("chaos: provider and shop asked again after faults", again, again > 0, "none")
	j.count("chaos: webhooks of the provider sent again", j.repeated.Sent, j.repeated.Sent > 0 && j.repeated.Delivered == j.repeated.Sent,
		"%d of %d were taken", j.repeated.Delivered, j.repeated.Sent)
	const ended = "chaos: nothing ended that was not killed"
	j.count(ended, c.programs, len(c.losses) == 0, "%s", strings.Join(c.losses, "\n"))
	j.check(ended).NotRun = c.programs == 0
}
