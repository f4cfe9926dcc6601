package domain_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

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

// TestDispute_refusesOneMovement: all else of a dispute is recorded.
func TestDispute_refusesOneMovement(t *testing.T) {
	t.Parallel()
	c := in("succeeded")
	o := domain.ObservedDispute{ID: "du_1", Amount: eur(1000), Status: "lost", Moved: []domain.DisputeMovement{
		{Transaction: "a", Amount: -2150, Currency: "USD"}, {Transaction: "b", Amount: -1700, Currency: "GBP"}, {Transaction: "c", Amount: 20, Currency: "USD"},
	}}
	events, err := c.ObserveDispute(o)
	if !errors.Is(err, domain.ErrMismatch) {
		t.Fatalf("the error is %v, want ErrMismatch", err)
	}
	c = domain.Fold(c, events...)
	if d := c.Disputes[0]; d.Status != "lost" || d.Withdrawn != 1000 || d.Reinstated != 9 {
		t.Errorf("the dispute is %+v", d)
	}
	if events, err := c.ObserveDispute(o); len(events) > 0 || !errors.Is(err, domain.ErrMismatch) {
		t.Errorf("then it records %+v with %v, want ErrMismatch", events, err)
	}
	for _, amount := range []int64{5, -5} {
		o.Moved = []domain.DisputeMovement{{Transaction: "d", Amount: amount}}
		if _, err := in("succeeded").ObserveDispute(o); !errors.Is(err, domain.ErrMismatch) {
			t.Errorf("%d in no currency before any withdrawal: %v, want ErrMismatch", amount, err)
		}
	}
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
