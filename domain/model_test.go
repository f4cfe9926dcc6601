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

// TestDisputes_areSums observes growing lists of movements and changing states, and compares what is
// recorded with a plain sum.
func TestDisputes_areSums(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		abroad := rapid.Bool().Draw(t, "abroad")
		d := drawDispute(t, abroad)
		events := slices.Clone(history("succeeded"))
		c := in("succeeded")
		for seen := 0; seen <= len(d.Moved); {
			now := d
			now.Moved = d.Moved[:seen]
			now.Status = domain.DisputeStatus(rapid.SampledFrom([]string{"open", "won", "lost", "warning_closed", "prevented"}).Draw(t, "status"))
			now.Amount.Amount = rapid.SampledFrom([]int64{1000, 900}).Draw(t, "amount")
			recorded := observe(t, c, now)
			events, c = append(events, recorded...), domain.Fold(c, recorded...)
			if again := observe(t, c, now); len(again) > 0 {
				t.Fatalf("seen again, it records %+v", again)
			}
			checkDispute(t, c, events, now)
			seen += rapid.IntRange(1, 3).Draw(t, "more")
		}
		if _, err := (domain.Charge{}).Append(events...); err != nil {
			t.Fatalf("ObserveDispute made a stream that Append refuses: %v", err)
		}
	})
}

// drawDispute draws a dispute with its movements; abroad, the first is a withdrawal.
func drawDispute(t *rapid.T, abroad bool) domain.ObservedDispute {
	d := domain.ObservedDispute{ID: "du_1", Reason: "fraudulent", Amount: eur(1000)}
	for i := range rapid.IntRange(0, 8).Draw(t, "movements") {
		m := domain.DisputeMovement{
			Transaction: "txn_" + string(rune('a'+i)), Currency: "EUR",
			Amount: rapid.Int64Range(-1200, 1200).Draw(t, "moved"), Fee: rapid.Int64Range(-20, 20).Draw(t, "fee"),
		}
		if abroad {
			m.Currency, m.Fee = "USD", 0
			if i == 0 {
				m.Amount = -rapid.Int64Range(1, 2500).Draw(t, "withdrawn")
			}
		}
		d.Moved = append(d.Moved, m)
	}
	return d
}

func observe(t *rapid.T, c domain.Charge, o domain.ObservedDispute) []domain.Event {
	events, err := c.ObserveDispute(o)
	if err != nil {
		t.Fatalf("observe %+v: %v", o, err)
	}
	return events
}

// checkDispute compares a charge and the balances of its events with what was observed last.
func checkDispute(t *rapid.T, c domain.Charge, events []domain.Event, seen domain.ObservedDispute) {
	var sum, fees int64
	for _, m := range seen.Moved {
		sum += m.Amount
		fees += m.Fee
	}
	if len(seen.Moved) > 0 && seen.Moved[0].Currency == "USD" {
		sum = share(sum, c.Disputes[0].Settled.Amount, -seen.Moved[0].Amount)
	}
	d := c.Disputes[0]
	if d.Reinstated-d.Withdrawn != sum || d.Status != seen.Status || d.Amount != seen.Amount.Amount {
		t.Fatalf("the dispute is %+v, the movements sum to %d of %+v", d, sum, seen)
	}
	got := balances(events)
	want := balances(history("succeeded"))
	for account, moved := range map[string]int64{"psp_receivable:stripe:EUR": sum - fees, "merchant_payable:acme:EUR": fees - sum} {
		if want[account] += moved; want[account] == 0 {
			delete(want, account)
		}
	}
	testrun.Same(t, "balances", want, got)
}

// share is moved / whole of an amount, rounded half to even. The operands are small, so floats tell
// a half from all else.
func share(moved, amount, whole int64) int64 {
	return int64(math.RoundToEven(float64(moved*amount) / float64(whole)))
}

// TestDispute_settledAbroad: a movement on a balance in another currency has its exact part of the first
// withdrawal, which is the amount of the dispute: also where the next float is a half, and at the largest amounts.
func TestDispute_settledAbroad(t *testing.T) {
	t.Parallel()
	const most, movement = domain.MaxAmount, 1_000_000_000_000_000 // the largest
	for _, test := range []struct {
		amount int64
		moved  []int64 // below zero where the provider took money
		parts  []int64 // behind the first withdrawal; fewer than moved where one is no amount
	}{
		{1000, []int64{-2150}, nil},
		{1000, []int64{-2150, 2150}, []int64{1000}},
		{1000, []int64{-2150, 20}, []int64{9}},
		{1000, []int64{-2150, 1, 1, 1}, []int64{0, 1, 0}}, // cents that are too small to count
		{1000, []int64{-2000, 1, 2}, []int64{0, 2}},       // a half goes to the even neighbour
		{1000, []int64{-2150, 4300}, []int64{2000}},
		{1000, []int64{20, -2150}, []int64{9}}, // a return that is listed first
		{1000, []int64{-999_999_999_999_999, 500_000_000_000}, []int64{1}},
		{1000, []int64{-999_999_999_999_991, 444_499_999_999_996}, []int64{445}},
		{1000, []int64{-999_999_999_999_991, 555_499_999_999_995}, []int64{555}},
		{99_999_999, []int64{-999_999_999_999_997, 534_482_760_344_826}, []int64{53_448_276}},
		{99_999_999, []int64{-999_999_999_999_995, 173_469_386_734_693}, []int64{17_346_938}},
		{most - 1, []int64{-999_999_999_999_997, 918_756_268_806_416}, []int64{918_756_268_806}},
		{most - 1, []int64{-999_999_999_999_991, 953_582_240_161_445}, []int64{953_582_240_160}},
		{most, []int64{-movement, movement}, []int64{most}},
		{most, []int64{-movement, 500}, []int64{0}},
		{most, []int64{-movement, 501}, []int64{1}},
		{most, []int64{-1, 1}, []int64{most}},
		{most, []int64{-1, 2}, nil},
		{most, []int64{-1, movement}, nil},
		{most, []int64{-1, movement + 1}, nil},
	} {
		o := domain.ObservedDispute{ID: "du_1", Amount: eur(test.amount), Status: domain.DisputeOpen}
		for i, amount := range test.moved {
			o.Moved = append(o.Moved, domain.DisputeMovement{Transaction: string(rune('a' + i)), Amount: amount, Currency: "USD"})
		}
		events, err := in("succeeded").ObserveDispute(o)
		var got []int64
		for _, e := range events {
			switch e := e.(type) {
			case domain.DisputeWithdrawn:
				got = append(got, -e.Amount)
			case domain.DisputeReinstated:
				got = append(got, e.Amount)
			}
		}
		testrun.Same(t, fmt.Sprintf("%v: parts", test.moved), append([]int64{-test.amount}, test.parts...), got)
		if refused := len(got) < len(test.moved); errors.Is(err, domain.ErrMismatch) != refused || (err != nil) != refused {
			t.Errorf("%v: %v, want ErrMismatch: %t", test.moved, err, refused)
		}
	}
}
