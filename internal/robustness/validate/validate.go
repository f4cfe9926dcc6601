// Package validate judges a run of traffic from outside: the answers to the requests
// against the records of the provider and of the merchant's webhook receiver. It
// reads no table of the service and imports none of its packages.
package validate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/payonce/payonce/internal/robustness/traffic"
)

// Evidence is what was observed of a run.
type Evidence struct {
	Plan     traffic.Plan
	Records  []traffic.Record
	Listed   []json.RawMessage // the list of charges at the end
	Before   traffic.Books     // before the first charge
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

// run is the evidence with its records by what they are about.
type run struct {
	Evidence

	captures map[string][]traffic.Money        // by charge
	paid     map[string][]traffic.Money        // by refund
	notified map[string][]traffic.Notification // by charge or refund
	listed   map[string][]json.RawMessage      // by charge
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

// promise is a check to be made.
type promise struct {
	name string
	// least is how many cases must be examined: a check of fewer proves nothing and
	// fails. nil is none.
	least func(traffic.Plan) int
	judge func(*run, *Check)
}

// Judge checks every promise of a run.
func Judge(e Evidence) []Check {
	r := &run{
		Evidence: e,
		captures: by(e.Books.Captures, reference),
		paid:     by(e.Books.Refunds, reference),
		notified: by(e.Books.Notifications, func(n traffic.Notification) string { return n.Reference }),
		listed:   by(e.Listed, func(c json.RawMessage) string { return traffic.HeadOf(c).ID }),
		owners:   by(e.Records, func(r traffic.Record) string { return r.ID }),
	}
	delete(r.owners, "") // of charges that were never accepted
	all := slices.Clone(outside)
	if e.Plan.Stock != nil {
		all = append(all, promise{"outside: scarce stock sells out and not twice", count(traffic.Charge.IsScarce), (*run).scarceStockSold})
	}
	all = append(all, chaos(e.Chaos.Killed)...)
	checks := make([]Check, len(all))
	for i, p := range all {
		check := &checks[i]
		check.Name, check.Examples = p.name, []any{}
		p.judge(r, check)
		if p.least != nil && check.Checked < p.least(e.Plan) {
			check.violate("looked at %d, expected %d", check.Checked, p.least(e.Plan))
		}
	}
	return checks
}

func charges(p traffic.Plan) int { return len(p.Charges) }

func count(is func(traffic.Charge) bool) func(traffic.Plan) int {
	return func(p traffic.Plan) int { return p.Count(is) }
}

// perCharge complains of single charges.
func perCharge(complain func(*run, traffic.Record) string) func(*run, *Check) {
	return chargesThat(func(traffic.Record) bool { return true }, complain)
}

// chargesThat is perCharge for some of them.
func chargesThat(are func(traffic.Record) bool, complain func(*run, traffic.Record) string) func(*run, *Check) {
	return func(r *run, check *Check) {
		for _, record := range r.Records {
			if are(record) {
				check.see(complain(r, record))
			}
		}
	}
}

// perRefund complains of single refunds.
func perRefund(complain func(*run, traffic.Record, traffic.RefundRecord) string) func(*run, *Check) {
	return func(r *run, check *Check) {
		for _, record := range r.Records {
			for _, refund := range record.Refunds {
				check.see(complain(r, record, refund))
			}
		}
	}
}

// outside are the promises that a client can check, in the order of the report.
var outside = []promise{
	{"outside: one answer per key, byte for byte", charges, perCharge(oneAnswer)},
	{"outside: one charge per key", charges, perCharge((*run).oneCharge)},
	{"outside: a used key refuses another body", count(func(c traffic.Charge) bool { return c.Reuse }), (*run).reusedKeysRefused},
	{"outside: every charge ends, and as it should", charges, perCharge(endsAsPlanned)},
	{"outside: every stream gapless, with one ending", charges, perCharge(orderedStream)},
	{"outside: at most one capture per charge", charges, perCharge(capturedAtMost(1))},
	{
		"outside: a succeeded charge is captured once, in full", count(traffic.Charge.MustSucceed),
		chargesThat(func(r traffic.Record) bool { return r.Final.Captured() }, (*run).capturedInFull),
	},
	{
		"outside: a failed charge is never captured", count(traffic.Charge.MustFail),
		chargesThat(func(r traffic.Record) bool { return r.Final.Status == traffic.Failed }, capturedAtMost(0)),
	},
	{"outside: no capture without a charge", count(traffic.Charge.MustSucceed), (*run).nothingElseCaptured},
	{"outside: the merchant is told of each ending once", charges, (*run).notifiedOnce},
	{"outside: webhooks sent again change nothing", charges, perCharge(func(_ *run, record traffic.Record) string {
		return unless(slices.Equal(record.Events, record.Later), "%s: %d events, later %d", record.ID, len(record.Events), len(record.Later))
	})},
	{"outside: every charge is listed once, as it is shown", charges, perCharge((*run).listedOnce)},
	{"outside: the list goes from the newest to the oldest", charges, (*run).listedInOrder},
	{
		"outside: a cancellation has one answer, and the charge keeps it", count(func(c traffic.Charge) bool { return c.Cancel }),
		chargesThat(func(r traffic.Record) bool { return r.Charge.Cancel }, cancellationKept),
	},
	{"outside: one answer per refund, byte for byte", traffic.Plan.Refunds, perRefund(func(_ *run, _ traffic.Record, refund traffic.RefundRecord) string {
		return unequal(refund.Refund.Key, refund.Answers)
	})},
	{"outside: every refund ends, and as it should", traffic.Plan.Refunds, perRefund(refundEndsAsPlanned)},
	{"outside: a refund is given back once if it succeeded, else never", traffic.Plan.Refunds, perRefund((*run).repaidOnce)},
	{"outside: no refund at the provider that nobody asked for", nil, (*run).nothingElseRefunded},
	{"outside: every charge says what was refunded", charges, perCharge(showsWhatWasRefunded)},
}

// unless is a complaint where a condition does not hold.
func unless(holds bool, format string, args ...any) string {
	if holds {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// unequal complains where three requests were not all answered, or not alike.
func unequal(key string, answers []traffic.Answer) string {
	if len(answers) != 3 {
		return fmt.Sprintf("%s: %d of 3 requests were answered", key, len(answers))
	}
	for _, a := range answers {
		if a != answers[0] {
			return fmt.Sprintf("%s: answered %+v and %+v", key, answers[0], a)
		}
	}
	return ""
}

func oneAnswer(_ *run, record traffic.Record) string {
	key, answers := record.Charge.Key, record.Answers
	if complaint := unequal(key, answers); complaint != "" {
		return complaint
	}
	return unless(answers[0].Status == http.StatusAccepted, "%s: answered %d %s", key, answers[0].Status, answers[0].Body)
}

func (r *run) oneCharge(record traffic.Record) string {
	if record.ID == "" {
		return record.Charge.Key + ": no charge"
	}
	first := r.owners[record.ID][0].Charge.Key
	return unless(first == record.Charge.Key, "%s: the same charge %s as %s", record.Charge.Key, record.ID, first)
}

func (r *run) reusedKeysRefused(check *Check) {
	for _, record := range r.Records {
		for _, a := range record.Reuse {
			check.see(unless(a.Status == http.StatusUnprocessableEntity && a.Problem() == "/problems/idempotency-key-reused",
				"%s: answered %d %s", record.Charge.Key, a.Status, a.Body))
		}
	}
}

func endsAsPlanned(_ *run, record traffic.Record) string {
	return unless(record.Final.Ended() && slices.Contains(record.Charge.Outcomes, record.Final.Outcome()), "%s %s: %q, should be %s",
		record.Charge.Order, record.ID, record.Final.Outcome(), strings.Join(record.Charge.Outcomes, " or "))
}

func orderedStream(_ *run, record traffic.Record) string {
	for i, e := range record.Events {
		if e.Version != i+1 {
			return fmt.Sprintf("%s: version %d follows %d", record.ID, e.Version, i)
		}
	}
	of := func(name string) int { return traffic.CountEvents(record.Events, name) }
	if n := of("charge.succeeded") + of("charge.failed"); n != 1 {
		return fmt.Sprintf("%s: %d endings", record.ID, n)
	}
	if n := of("payment.captured"); n > 1 {
		return fmt.Sprintf("%s: captured %d times", record.ID, n)
	}
	return unless(of("merchant.notified") == record.Outcomes(), "%s: %d endings, the merchant was told %d times",
		record.ID, record.Outcomes(), of("merchant.notified"))
}

func capturedAtMost(n int) func(*run, traffic.Record) string {
	return func(r *run, record traffic.Record) string {
		return unless(len(r.captures[record.ID]) <= n, "%s: %d captures", record.ID, len(r.captures[record.ID]))
	}
}

func (r *run) capturedInFull(record traffic.Record) string {
	c := r.captures[record.ID]
	if len(c) != 1 {
		return fmt.Sprintf("%s: %d captures", record.ID, len(c))
	}
	return unless(c[0].Amount == record.Charge.Amount && strings.EqualFold(c[0].Currency, record.Charge.Currency),
		"%s: captured %d %s, not %d %s", record.ID, c[0].Amount, c[0].Currency, record.Charge.Amount, record.Charge.Currency)
}

// nothingElseCaptured finds captures that belong to no charge of the run.
func (r *run) nothingElseCaptured(check *Check) {
	earlier := by(r.Before.Captures, reference)
	for _, c := range r.Books.Captures {
		check.see(unless(r.owners[c.Reference] != nil || earlier[c.Reference] != nil, "%d %s captured for %q", c.Amount, c.Currency, c.Reference))
	}
}

func (r *run) notifiedOnce(check *Check) {
	for _, record := range r.Records {
		outcome := "charge.succeeded"
		if record.Final.Status == traffic.Failed {
			outcome = "charge.failed"
		}
		check.see(wrongNotification(record.ID, outcome, r.notified[record.ID]))
		for _, refund := range record.Refunds {
			if refund.Ended() {
				check.see(wrongNotification(refund.ID, "refund."+refund.Status, r.notified[refund.ID]))
			}
		}
	}
}

func wrongNotification(reference, outcome string, notified []traffic.Notification) string {
	switch {
	case len(notified) != 1:
		return fmt.Sprintf("%s: %d notifications", reference, len(notified))
	case notified[0].Type != outcome:
		return fmt.Sprintf("%s: told %s, not %s", reference, notified[0].Type, outcome)
	}
	return unless(notified[0].Effects == 1 && notified[0].Deliveries >= 1, "%s: delivered %d times, %d effects", reference, notified[0].Deliveries, notified[0].Effects)
}

func (r *run) listedOnce(record traffic.Record) string {
	listed := r.listed[record.ID]
	if len(listed) != 1 {
		return fmt.Sprintf("%s: listed %d times", record.ID, len(listed))
	}
	return unless(bytes.Equal(listed[0], record.Shown), "%s: listed as %s, shown as %s", record.ID, listed[0], record.Shown)
}

func (r *run) listedInOrder(check *Check) {
	for i, charge := range r.Listed {
		older := traffic.HeadOf(charge)
		newer := traffic.HeadOf(r.Listed[max(0, i-1)])
		check.see(unless(!older.CreatedAt.After(newer.CreatedAt), "%s is listed before %s, which is newer", newer.ID, older.ID))
	}
}

// cancellationKept: a charge whose cancellation was accepted may still be captured,
// but one whose cancellation was refused is never canceled.
func cancellationKept(_ *run, record traffic.Record) string {
	key := record.Charge.Key + "-cancel"
	if complaint := unequal(key, record.Cancel); complaint != "" {
		return complaint
	}
	switch a := record.Cancel[0]; {
	case a.Status == http.StatusAccepted:
		return unless(a.Location == "/v1/charges/"+record.ID, "%s: accepted, at %q", key, a.Location)
	case a.Status != http.StatusConflict || a.Problem() != traffic.NotCaptured:
		return fmt.Sprintf("%s: answered %d %s", key, a.Status, a.Body)
	}
	return unless(record.Final.Outcome() != traffic.Canceled, "%s: refused, and %s was canceled", key, record.ID)
}

func refundEndsAsPlanned(_ *run, record traffic.Record, refund traffic.RefundRecord) string {
	if !slices.Contains(refund.Refund.Outcomes, refund.Outcome()) {
		return fmt.Sprintf("%s of %s: %q, should be %s",
			refund.Refund.Key, record.ID, refund.Outcome(), strings.Join(refund.Refund.Outcomes, " or "))
	}
	return unless(!refund.Ended() || refund.Amount == refund.Refund.Amount, "%s of %s: %d, should be %d",
		refund.Refund.Key, record.ID, refund.Amount, refund.Refund.Amount)
}

func (r *run) repaidOnce(record traffic.Record, refund traffic.RefundRecord) string {
	paid := r.paid[refund.ID]
	switch {
	case refund.Status != traffic.Succeeded:
		return unless(len(paid) == 0 || refund.ID == "", "%s of %s: %s, and given back %d times", refund.ID, record.ID, refund.Status, len(paid))
	case len(paid) != 1:
		return fmt.Sprintf("%s of %s: given back %d times", refund.ID, record.ID, len(paid))
	}
	return unless(paid[0].Amount == refund.Refund.Amount, "%s of %s: gave back %d, not %d", refund.ID, record.ID, paid[0].Amount, refund.Refund.Amount)
}

// nothingElseRefunded finds refunds at the provider that no request led to.
func (r *run) nothingElseRefunded(check *Check) {
	known := by(r.Before.Refunds, reference)
	for _, record := range r.Records {
		for _, refund := range record.Refunds {
			if refund.ID != "" {
				known[refund.ID] = []traffic.Money{{}}
			}
		}
	}
	for _, paid := range r.Books.Refunds {
		check.see(unless(known[paid.Reference] != nil, "%d given back for %q", paid.Amount, paid.Reference))
	}
}

// showsWhatWasRefunded compares what a charge shows with its refunds, which together
// never exceed it.
func showsWhatWasRefunded(_ *run, record traffic.Record) string {
	sum := int64(0)
	for _, refund := range record.Refunds {
		if refund.Status == traffic.Succeeded {
			sum += refund.Amount
		}
	}
	status := record.Final.Status
	switch {
	case sum == 0 && record.Final.Captured():
		status = traffic.Succeeded
	case sum > 0 && sum < record.Charge.Amount:
		status = traffic.PartiallyRefunded
	case sum == record.Charge.Amount:
		status = traffic.Refunded
	case sum > record.Charge.Amount:
		return fmt.Sprintf("%s: %d refunded of %d", record.ID, sum, record.Charge.Amount)
	}
	return unless(record.Final.Status == status && record.Final.AmountRefunded == sum, "%s: %s, %d refunded; should be %s, %d",
		record.ID, record.Final.Status, record.Final.AmountRefunded, status, sum)
}

// scarceStockSold: as many charges got the scarce SKU as there were, no more and no
// fewer.
func (r *run) scarceStockSold(check *Check) {
	sold := 0
	for _, record := range r.Records {
		if record.Charge.IsScarce() {
			check.see("")
			if record.Final.Outcome() == traffic.Succeeded {
				sold++
			}
		}
	}
	wanted, stock := r.Plan.Count(traffic.Charge.IsScarce), r.Plan.Stock[traffic.ScarceSKU]
	if sold != min(wanted, stock) {
		check.violate("%d wanted, %d in stock, %d sold", wanted, stock, sold)
	}
}
