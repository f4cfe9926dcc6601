// Package validate judges a run of traffic from outside: the answers to the requests
// against the records of the provider and of the merchant's webhook receiver. It
// reads no table of the service and imports none of its packages.
package validate

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/payonce/payonce/internal/robustness/traffic"
)

// Evidence is what was observed of a run.
type Evidence struct {
	Plan     traffic.Plan
	Records  []traffic.Record
	Listed   []traffic.Shown // the list of charges at the end
	Before   traffic.Books   // before the first charge
	Books    traffic.Books
	Repeated traffic.Repeated // the provider's webhooks
	Chaos    Chaos
}

// Suppressed is how many requests the provider answered from its record.
func (e Evidence) Suppressed() int {
	return e.Books.DuplicatesSuppressed - e.Before.DuplicatesSuppressed
}

// Redelivered is how many webhooks were delivered beyond the first time.
func (e Evidence) Redelivered() int { return e.Books.Redelivered() - e.Before.Redelivered() }

// The promises that a client can check.
const (
	oneAnswer       = "observed: one answer per key, byte for byte"
	oneCharge       = "observed: one charge per key"
	reusedKey       = "observed: a used key refuses another body"
	endsAsPlanned   = "observed: every charge ends as planned"
	streams         = "observed: every stream has no gap and one outcome"
	oneCapture      = "observed: at most one capture per charge"
	capturedInFull  = "observed: a succeeded charge is captured once, in full"
	neverCaptured   = "observed: a failed charge is never captured"
	onlyCharges     = "observed: no capture without a charge"
	notifiedOnce    = "observed: the merchant is notified of each outcome once"
	webhooksAgain   = "observed: repeated webhooks change nothing"
	listedOnce      = "observed: every charge is listed once, as GET shows it"
	newestFirst     = "observed: the list goes from the newest to the oldest"
	cancellation    = "observed: a cancellation has one answer, and the charge keeps it"
	refundAnswer    = "observed: one answer per refund, byte for byte"
	refundEnds      = "observed: every refund ends as planned"
	paidOnce        = "observed: a succeeded refund is returned once, any other never"
	onlyRefunds     = "observed: no refund at the provider without a request"
	showsRefunded   = "observed: every charge shows what was refunded"
	showsDisputes   = "observed: every dispute is in its charge's stream once"
	scarceStockSold = "observed: scarce stock sells out and not twice"
)

// judge makes the checks of a run, with its records by what they are about.
type judge struct {
	Evidence

	checks   []*Check                          // in the order of the report
	names    map[string]string                 // charges, by their references at the provider
	captures map[string][]traffic.Money        // by charge
	paid     map[string][]traffic.Money        // by refund
	notified map[string][]traffic.Notification // by charge or refund
	listed   map[string][]traffic.Shown        // by charge
	owners   map[string][]traffic.Record       // by charge
}

func by[T any](all []T, key func(T) string) map[string][]T {
	found := map[string][]T{}
	for _, one := range all {
		found[key(one)] = append(found[key(one)], one)
	}
	return found
}

func reference(m traffic.Money) string { return m.Reference }

// chargeOf is the charge that money was captured for.
func (j *judge) chargeOf(m traffic.Money) string {
	return cmp.Or(j.names[m.ChargeReference], m.Reference)
}

// Judge checks every promise of a run. A check of fewer cases than the plan has proves
// nothing and is violated.
func Judge(e Evidence) []Check {
	j := &judge{
		Evidence: e,
		names:    map[string]string{},
		paid:     by(e.Books.Refunds, reference),
		notified: by(e.Books.Notifications, func(n traffic.Notification) string { return n.Reference }),
		listed:   by(e.Listed, func(c traffic.Shown) string { return c.ID }),
		owners:   by(e.Records, func(r traffic.Record) string { return r.ID }),
	}
	delete(j.owners, "") // of charges that were never accepted
	for _, r := range e.Records {
		for _, event := range r.Events {
			j.names[event.Data.Reference] = r.ID
		}
	}
	delete(j.names, "")
	j.captures = by(e.Books.Captures, j.chargeOf)
	for _, name := range []string{
		oneAnswer, oneCharge, reusedKey, endsAsPlanned, streams, oneCapture, capturedInFull, neverCaptured, onlyCharges, notifiedOnce,
		webhooksAgain, listedOnce, newestFirst, cancellation, refundAnswer, refundEnds, paidOnce, onlyRefunds, showsRefunded, showsDisputes,
	} {
		j.check(name)
	}
	for _, r := range e.Records {
		j.judgeCharge(r)
		j.judgeCaptures(r)
		j.judgeCancellation(r)
		for _, refund := range r.Refunds {
			j.judgeRefund(r, refund)
		}
		j.judgeRefunded(r)
	}
	j.judgeBooks()
	for i, older := range e.Listed {
		newer := e.Listed[max(0, i-1)]
		j.expect(newestFirst, !older.CreatedAt.After(newer.CreatedAt), "%s is listed before %s, which is newer", newer.ID, older.ID)
	}
	j.judgeStock()
	j.judgeNumbers()
	j.judgeChaos()
	var checks []Check
	for _, check := range j.checks {
		checks = append(checks, *check)
	}
	return checks
}

// check is the check of a promise.
func (j *judge) check(name string) *Check {
	for _, check := range j.checks {
		if check.Name == name {
			return check
		}
	}
	check := &Check{Name: name, Examples: []any{}}
	j.checks = append(j.checks, check)
	return check
}

// expect examines one case of a promise.
func (j *judge) expect(name string, holds bool, complaint string, args ...any) {
	check := j.check(name)
	check.Checked++
	if !holds {
		check.violate(complaint, args...)
	}
}

// count is for what happened so often, and had to happen more often.
func (j *judge) count(name string, happened, least int) {
	j.check(name).Checked = happened
	j.atLeast(name, least)
}

// atLeast requires so many cases of a promise.
func (j *judge) atLeast(name string, least int) {
	if check := j.check(name); check.Checked < least {
		check.violate("%d, should be %d", check.Checked, least)
	}
}

// judgeNumbers requires as many cases as the plan has.
func (j *judge) judgeNumbers() {
	for _, name := range []string{
		oneAnswer, oneCharge, endsAsPlanned, streams, oneCapture, notifiedOnce, webhooksAgain, listedOnce, newestFirst, showsRefunded, showsDisputes,
	} {
		j.atLeast(name, len(j.Plan.Charges))
	}
	for _, name := range []string{refundAnswer, refundEnds, paidOnce} {
		j.atLeast(name, j.Plan.Refunds())
	}
	j.atLeast(reusedKey, j.Plan.Count(func(c traffic.Charge) bool { return c.Reuse }))
	j.atLeast(cancellation, j.Plan.Count(func(c traffic.Charge) bool { return c.Cancel }))
	j.atLeast(capturedInFull, j.Plan.Count(traffic.Charge.MustSucceed))
	j.atLeast(onlyCharges, j.Plan.Count(traffic.Charge.MustSucceed))
	j.atLeast(neverCaptured, j.Plan.Count(traffic.Charge.MustFail))
}

// alike reports whether all requests, three or more, were answered with the same.
func alike(answers []traffic.Answer) bool {
	return len(answers) >= 3 && !slices.ContainsFunc(answers, func(a traffic.Answer) bool { return a != answers[0] })
}

func (j *judge) judgeCharge(r traffic.Record) {
	key := r.Charge.Key
	j.expect(oneAnswer, alike(r.Answers) && r.Answers[0].Status == http.StatusAccepted, "%s: answered %+v", key, r.Answers)
	j.expect(oneCharge, r.ID != "" && j.owners[r.ID][0].Charge.Key == key, "%s: no charge, or that of another key: %q", key, r.ID)
	for _, a := range r.Reuse {
		j.expect(reusedKey, a.Status == http.StatusUnprocessableEntity && a.Problem() == "/problems/idempotency-key-reused", "%s: answered %d %s", key, a.Status, a.Body)
	}
	j.expect(endsAsPlanned, r.Final.Ended() && slices.Contains(r.Charge.Outcomes, r.Final.Outcome()),
		"%s %s: %q, should be %s", r.Charge.Order, r.ID, r.Final.Outcome(), strings.Join(r.Charge.Outcomes, " or "))
	gapless := true
	for i, e := range r.Events {
		gapless = gapless && e.Version == i+1
	}
	of := func(name string) int { return traffic.CountEvents(r.Events, name) }
	endings, captures, notified := of("charge.succeeded")+of("charge.failed"), of("payment.captured"), of("merchant.notified")
	j.expect(streams, gapless && endings == 1 && captures <= 1 && notified == r.Outcomes(),
		"%s: gapless is %v, %d endings, %d captures, notified %d times of %d", r.ID, gapless, endings, captures, notified, r.Outcomes())
	j.expect(webhooksAgain, slices.Equal(r.Events, r.Later), "%s: %d events, later %d", r.ID, len(r.Events), len(r.Later))
	listed := j.listed[r.ID]
	j.expect(listedOnce, len(listed) == 1 && listed[0] == r.Shown, "%s: listed as %+v, shown as %+v", r.ID, listed, r.Shown)
	disputed, won := 0, 0
	if r.Charge.Disputed != "" {
		disputed, won = 1, map[string]int{traffic.DisputeWon: 1}[r.Charge.Disputed]
	}
	j.expect(showsDisputes, of("charge.dispute_opened") == disputed && of("charge.dispute_withdrawn") == disputed &&
		of("charge.dispute_reinstated") == won && of("charge.dispute_closed") == disputed, "%s: dispute %q, %+v", r.ID, r.Charge.Disputed, r.Events)
	outcome := "charge.succeeded"
	if r.Final.Status == traffic.Failed {
		outcome = "charge.failed"
	}
	j.expectNotified(r.ID, outcome)
}

// expectNotified: the merchant received an outcome once or more often, and acted once.
func (j *judge) expectNotified(reference, outcome string) {
	n := j.notified[reference]
	j.expect(notifiedOnce, len(n) == 1 && n[0].Type == outcome && n[0].Effects == 1 && n[0].Deliveries >= 1, "%s: notified %+v, should be %s once", reference, n, outcome)
}

func (j *judge) judgeCaptures(r traffic.Record) {
	c := j.captures[r.ID]
	j.expect(oneCapture, len(c) <= 1, "%s: %d captures", r.ID, len(c))
	if r.Final.Captured() {
		j.expect(capturedInFull, len(c) == 1 && c[0].Amount == r.Charge.Amount && strings.EqualFold(c[0].Currency, r.Charge.Currency),
			"%s: captured %+v, not %d %s", r.ID, c, r.Charge.Amount, r.Charge.Currency)
	}
	if r.Final.Status == traffic.Failed {
		j.expect(neverCaptured, len(c) == 0, "%s: %d captures", r.ID, len(c))
	}
}

// judgeCancellation: a charge whose cancellation was accepted may still be captured,
// but one whose cancellation was refused is never canceled.
func (j *judge) judgeCancellation(r traffic.Record) {
	if !r.Charge.Cancel {
		return
	}
	holds := alike(r.Cancel)
	if holds && r.Cancel[0].Status == http.StatusAccepted {
		holds = r.Cancel[0].Location == "/v1/charges/"+r.ID
	} else if holds {
		holds = r.Cancel[0].Status == http.StatusConflict && r.Cancel[0].Problem() == traffic.NotCaptured && r.Final.Outcome() != traffic.Canceled
	}
	j.expect(cancellation, holds, "%s: %q after the answers %+v", r.ID, r.Final.Outcome(), r.Cancel)
}

func (j *judge) judgeRefund(r traffic.Record, refund traffic.RefundRecord) {
	key, want := refund.Refund.Key, refund.Refund.Amount
	j.expect(refundAnswer, alike(refund.Answers) || refund.Refund.Outside, "%s: answered %+v", key, refund.Answers)
	j.expect(refundEnds, slices.Contains(refund.Refund.Outcomes, refund.Outcome()) && (!refund.Ended() || refund.Amount == want),
		"%s of %s: %q of %d, should be %s of %d", key, r.ID, refund.Outcome(), refund.Amount, strings.Join(refund.Refund.Outcomes, " or "), want)
	paid := j.paid[refund.ID]
	if refund.Status == traffic.Succeeded {
		j.expect(paidOnce, len(paid) == 1 && paid[0].Amount == want, "%s of %s: gave back %+v, not %d", refund.ID, r.ID, paid, want)
	} else {
		j.expect(paidOnce, len(paid) == 0 || refund.ID == "", "%s of %s: %s, and gave back %+v", refund.ID, r.ID, refund.Status, paid)
	}
	if refund.Ended() {
		j.expectNotified(refund.ID, "refund."+refund.Status)
	}
}

// judgeRefunded compares what a charge shows with its refunds, which together never
// exceed it.
func (j *judge) judgeRefunded(r traffic.Record) {
	sum := int64(0)
	for _, refund := range r.Refunds {
		if refund.Status == traffic.Succeeded {
			sum += refund.Amount
		}
	}
	status := r.Final.Status
	switch {
	case sum == 0 && r.Final.Captured():
		status = traffic.Succeeded
	case sum > 0 && sum < r.Charge.Amount:
		status = traffic.PartiallyRefunded
	case sum == r.Charge.Amount:
		status = traffic.Refunded
	}
	j.expect(showsRefunded, sum <= r.Charge.Amount && r.Final.Status == status && r.Final.AmountRefunded == sum,
		"%s of %d: %s, %d refunded; should be %s, %d", r.ID, r.Charge.Amount, r.Final.Status, r.Final.AmountRefunded, status, sum)
}

// judgeBooks finds captures and refunds at the provider that belong to no charge and
// to no refund of the run.
func (j *judge) judgeBooks() {
	captured, paid := by(j.Before.Captures, j.chargeOf), by(j.Before.Refunds, reference)
	for _, c := range j.Books.Captures {
		j.expect(onlyCharges, j.owners[j.chargeOf(c)] != nil || captured[j.chargeOf(c)] != nil, "%d %s captured for %q", c.Amount, c.Currency, c.Reference)
	}
	for _, r := range j.Records {
		for _, refund := range r.Refunds {
			if refund.ID != "" {
				paid[refund.ID] = []traffic.Money{{}}
			}
		}
	}
	for _, m := range j.Books.Refunds {
		j.expect(onlyRefunds, paid[m.Reference] != nil, "%d given back for %q", m.Amount, m.Reference)
	}
}

// judgeStock: as many charges got the scarce SKU as there were, no more and no fewer.
func (j *judge) judgeStock() {
	if j.Plan.Stock == nil {
		return
	}
	sold := 0
	for _, r := range j.Records {
		if r.Charge.IsScarce() && r.Final.Outcome() == traffic.Succeeded {
			sold++
		}
	}
	wanted, stock := j.Plan.Count(traffic.Charge.IsScarce), j.Plan.Stock[traffic.ScarceSKU]
	j.check(scarceStockSold).Checked = wanted
	if sold != min(wanted, stock) {
		j.check(scarceStockSold).violate("%d wanted, %d in stock, %d sold", wanted, stock, sold)
	}
}
