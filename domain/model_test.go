package domain_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// TestAnySequenceOfEvents proposes events to a charge in any order, any number of times, sensible or
// not. Which of them a state allows is in TestAppend; this is what holds after all.
func TestAnySequenceOfEvents(t *testing.T) {
	t.Parallel()
	all := maps.Clone(histories().candidates)
	maps.DeleteFunc(all, func(name string, _ domain.Event) bool {
		return strings.HasPrefix(name, "charge.dispute") || strings.HasPrefix(name, "refund.observed")
	})
	names := slices.Sorted(maps.Keys(all))
	rapid.Check(t, func(t *rapid.T) {
		m := &sequence{charge: domain.Charge{ID: "ch_1"}}
		for range rapid.SampledFrom([]int{0, 2, 3, 4, 4, 4, 4}).Draw(t, "steps taken") {
			m.send(t, m.next(t)...)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := domain.Decode(domain.TypeOf(e), data)
		if err != nil {
			t.Fatal(err)
		}
		c = domain.Fold(c, decoded)
	}
	return c
}

// next returns the events of the step that is due, as an undisturbed worker appends them.
func (m *sequence) next(t *rapid.T) []domain.Event {
	switch {
	case m.charge.Version == 0:
		return []domain.Event{event(rapid.SampledFrom([]string{"charge", "bare", "silent"}).Draw(t, "request"))}
	case m.charge.Next() == domain.Inventory:
		return []domain.Event{domain.InventoryReserved{Items: m.charge.Items}}
	case !m.charge.PaymentStarted():
		return []domain.Event{event("payment.started.v1")}
	default:
		return m.charge.Capture("pi_1", m.charge.Money)
	}
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
