package domain_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// TestPostings compares the postings of each event, of a charge of 1000 of which 30 are the fee, with
// testdata/postings.txt. They are stored books, so its lines do not change.
func TestPostings(t *testing.T) {
	t.Parallel()
	after := map[string]string{
		"charge.requested.v1": "absent",
		"refund.requested.v1": "succeeded", "refund.attempt_failed.v1": "refund pending", "refund.succeeded.v1": "refund pending",
		"refund.failed.v1": "refund pending", "refund.reversed.v1": "refunded in part",
		"charge.dispute_opened.v1": "succeeded", "charge.dispute_withdrawn.v2": "disputed", "charge.dispute_reinstated.v2": "dispute won",
		"charge.dispute_updated.v1": "disputed", "charge.dispute_closed.v2": "dispute withdrawn",
	}
	var lines []string
	all := stored()
	all["payment.captured.v1 without fee"] = event(`payment.captured.v1 {"fee":0}`)
	all["payment.captured.v1 whose fee is all"] = event(`payment.captured.v1 {"fee":1000}`)
	for name, e := range all {
		for leg, p := range domain.Postings(in(cmp.Or(after[name], "started")), e) {
			lines = append(lines, fmt.Sprintf("%s %d | %s → %s %d %s", name, leg+1, p.Debit, p.Credit, p.Amount, p.Currency))
		}
	}
	slices.Sort(lines)
	testrun.Golden(t, "postings.txt", append(lines, "")...)
}

func TestFeeSchedule(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		schedule domain.FeeSchedule
		amount   int64
		want     int64
	}{
		{"the largest fixed part does not overflow", fees(10_000, math.MaxInt64), domain.MaxAmount, domain.MaxAmount},
		{"three percent of ten euros", fees(300, 0), 1000, 30},
		{"less than half a cent is nothing", fees(300, 0), 16, 0},
		{"half a cent is a cent", fees(100, 0), 50, 1},
		{"a hundredth less than half a cent is nothing", fees(1, 0), 4999, 0},
		{"exactly half of the smallest unit is rounded up", fees(1, 0), 5000, 1},
		{"the fixed part is added after rounding", fees(100, 25), 50, 26},
		{"the fee is never above the amount", fees(300, 500), 100, 100},
		{"no schedule is no fee", domain.FeeSchedule{}, 1000, 0},
		{"a fixed part below zero lowers the fee", fees(300, -10), 1000, 20},
		{"the fee is never below nothing", fees(0, -10), 1000, 0},
	} {
		if got := test.schedule.Of(test.amount); got != test.want {
			t.Errorf("%s: the fee is %d, want %d", test.name, got, test.want)
		}
	}
}

func fees(basisPoints, fixed int64) domain.FeeSchedule {
	return domain.FeeSchedule{BasisPoints: basisPoints, Fixed: fixed}
}

// TestAnySequenceOfEvents proposes events to a charge in any order, any number of times, sensible or
// not. Which of them a state allows is in TestAppend; this is what holds after all.
func TestAnySequenceOfEvents(t *testing.T) {
	t.Parallel()
	all := maps.Clone(histories().candidates)
	maps.DeleteFunc(all, func(name string, _ domain.Event) bool {
		return strings.HasPrefix(name, "charge.dispute") || strings.HasPrefix(name, "refund.observed")
	})
	names := slices.Sorted(maps.Keys(all))
	begun := []string{"absent", "requested", "requested bare", "started", "succeeded", "succeeded", "succeeded", "succeeded silent"}
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.SampledFrom(begun).Draw(t, "from")
		m := &sequence{charge: in(from), events: history(from)}
		requestRefund := func(t *rapid.T) { m.send(t, m.drawRefund(t)...) }
		resolveRefund := func(t *rapid.T) { m.send(t, m.drawResult(t)...) }
		t.Repeat(map[string]func(*rapid.T){
			"":                m.check,
			"any":             func(t *rapid.T) { m.send(t, all[rapid.SampledFrom(names).Draw(t, "event")]) },
			"request refund":  requestRefund,
			"request another": requestRefund,
			"resolve refund":  resolveRefund,
			"resolve another": resolveRefund,
			"forge":           m.forge,
		})
	})
}

// sequence is the charge under test and its stream.
type sequence struct {
	charge domain.Charge
	events []domain.Event
	forged bool // some of the events are void requests
}

// forge appends a request that the charge does not allow, past Append.
func (m *sequence) forge(t *rapid.T) {
	e := rapid.SampledFrom([]domain.Event{
		event("charge"), domain.ChargeCancelRequested{}, back(drawID(t), 1e17), domain.Unreadable{Name: "refund.requested.v1"},
	}).Draw(t, "request")
	if m.charge.Version == 0 || !m.charge.Voids(e) {
		return
	}
	m.events, m.charge, m.forged = append(m.events, e), domain.Fold(m.charge, e), true
}

// send appends events, if the charge allows them.
func (m *sequence) send(t *rapid.T, events ...domain.Event) {
	before := m.reread(t)
	next, err := m.charge.Append(events...)
	domain.Fold(m.charge, back("rival", 1), gone("rival", "rp_rival", 1)) // another continuation, which has nothing in common with next
	testrun.Same(t, "the charge, which Append leaves as it was", before, m.charge)
	if err != nil {
		return
	}
	m.events, m.charge = append(m.events, events...), next
	testrun.Same(t, "the charge, with its stored stream as wanted", m.reread(t), m.charge)
}

// reread folds the stream as it would be read back from the store. It shares
// no memory with the charge.
func (m *sequence) reread(t *rapid.T) domain.Charge {
	c := domain.Charge{ID: "ch_1"}
	for _, e := range m.events {
		data, err := json.Marshal(e)
		testrun.Must(t, err)
		decoded, err := domain.Decode(domain.TypeOf(e), data)
		testrun.Must(t, err)
		c = domain.Fold(c, decoded)
	}
	return c
}

func drawID(t *rapid.T) string {
	return rapid.SampledFrom([]string{"re_1", "re_2", "re_3", "re_4", ""}).Draw(t, "refund")
}

// drawRefund draws mostly a part of what is left, sometimes all, sometimes more.
func (m *sequence) drawRefund(t *rapid.T) []domain.Event {
	left := m.charge.Refundable()
	events, _ := m.charge.RequestRefund(domain.RefundRequested{
		RefundID: drawID(t), Notify: rapid.Bool().Draw(t, "notify"),
		Amount: rapid.OneOf(rapid.Int64Range(0, left), rapid.Int64Range(-1, left+1)).Draw(t, "amount"),
	})
	return events
}

// drawResult draws mostly what the provider may say of a refund, and sometimes another refund's object.
func (m *sequence) drawResult(t *rapid.T) []domain.Event {
	id := drawID(t)
	r, _ := m.charge.Refund(id)
	own := "rp_" + id
	return r.Resolve(rapid.SampledFrom([]string{own, own, own, "rp_re_1", ""}).Draw(t, "object"), rapid.Bool().Draw(t, "failed"), "no")
}

// check holds after every event: the stream is legal, the money is taken once and no more of
// it is returned, and the balances are what the charge says.
func (m *sequence) check(t *rapid.T) {
	if _, err := (domain.Charge{}).Append(m.events...); m.forged != errors.Is(err, domain.ErrIllegal) || !m.forged && err != nil {
		t.Fatalf("Append says %v of a stream with void requests: %t", err, m.forged)
	}
	c := domain.Charge{ID: "ch_1"}
	captured, captures, outcomes := int64(0), 0, 0
	for _, e := range m.events {
		switch e := e.(type) {
		case domain.PaymentCaptured:
			captured, captures = e.Amount, captures+1
		case domain.ChargeSucceeded, domain.ChargeFailed:
			outcomes++
		}
		for _, p := range domain.Postings(c, e) {
			if p.Amount <= 0 || p.Debit == p.Credit || p.Currency != m.charge.Currency {
				t.Fatalf("%T causes the posting %+v", e, p)
			}
		}
		c = domain.Fold(c, e)
	}
	var pending int64
	for _, r := range c.Refunds {
		if r.Status == domain.RefundStatusPending {
			pending += r.Amount
		}
	}
	if captures > 1 || outcomes > 1 || c.AmountRefunded()+pending+c.Refundable() != captured || c.Refundable() < 0 {
		t.Fatalf("%d captures, %d outcomes, of %d captured %d refunded and %d to be, %d left",
			captures, outcomes, captured, c.AmountRefunded(), pending, c.Refundable())
	}
	want := map[string]int64{}
	set := func(account string, balance int64) {
		if balance != 0 {
			want[account+":"+string(c.Currency)] = balance
		}
	}
	switch {
	case captured > 0:
		set("psp_receivable:stripe", captured-c.AmountRefunded())
		set("merchant_payable:acme", -(captured - c.Fee - pending - c.AmountRefunded()))
		set("fee_revenue:payonce", -c.Fee)
		set("refund_clearing:acme", -pending)
	case !c.HasOutcome():
		set("customer_receivable:acme", c.Amount)
		set("merchant_pending:acme", -c.Amount)
	}
	testrun.Same(t, "balances", want, balances(m.events))
}

// balances returns debits less credits of each account of a stream that is not even.
func balances(events []domain.Event) map[string]int64 {
	sums := map[string]int64{}
	c := domain.Charge{ID: "ch_1"}
	for _, e := range events {
		for _, p := range domain.Postings(c, e) {
			sums[p.Debit] += p.Amount
			sums[p.Credit] -= p.Amount
		}
		c = domain.Fold(c, e)
	}
	for account, balance := range sums {
		if balance == 0 {
			delete(sums, account)
		}
	}
	return sums
}
