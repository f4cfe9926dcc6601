package audit_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/audit"
)

// intents is what a provider lists that has done what the world's ledger says,
// and made orphans that never took money.
func (w *world) intents() []audit.Intent {
	intent := func(name, status string, received int64) audit.Intent {
		return audit.Intent{
			ID: "pi_" + name, Reference: w.charges[name], Status: status,
			Amount: 1000, AmountReceived: received, Currency: "USD",
		}
	}
	orphan := intent("declined", "requires_confirmation", 0)
	orphan.ID = "pi_orphan"
	return []audit.Intent{
		intent("paying", "requires_confirmation", 0),
		intent("untold", "succeeded", 1000),
		orphan,
		intent("declined", "canceled", 0),
		intent("refunded", "succeeded", 1000),
		intent("bought", "succeeded", 1000),
		intent("sold", "succeeded", 1000),
	}
}

// refunds is what a provider lists that has done what the world's ledger says.
func (w *world) refunds() []audit.Refund {
	refund := func(name, status string, amount int64) audit.Refund {
		return audit.Refund{
			ID: "re_" + name, Reference: w.charges[name], PaymentIntent: "pi_refunded",
			Status: status, Amount: amount, Currency: "USD",
		}
	}
	return []audit.Refund{
		refund("reversed", "failed", 100),
		refund("bounced", "failed", 200),
		refund("part", "succeeded", 400),
	}
}

func list[T any](items ...T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

func broken[T any](err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		yield(none, err)
	}
}

func (w *world) reconcile(intents []audit.Intent, refunds []audit.Refund) []audit.Check {
	w.Helper()
	checks, err := audit.Reconcile(w.Context(), w.db, list(intents...), list(refunds...))
	if err != nil {
		w.Fatal(err)
	}
	return checks
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	change := func(id string, change func(*audit.Intent)) []audit.Intent {
		intents := w.intents()
		change(&intents[slices.IndexFunc(intents, func(in audit.Intent) bool { return in.ID == id })])
		return intents
	}
	without := func(id string) []audit.Intent {
		return slices.DeleteFunc(w.intents(), func(in audit.Intent) bool { return in.ID == id })
	}
	took := func(id, charge string) []audit.Intent {
		return append(w.intents(), audit.Intent{
			ID: id, Reference: charge, Status: "succeeded", Amount: 1000, AmountReceived: 1000, Currency: "USD",
		})
	}
	const (
		once     = "provider: one capture per charge"
		inFull   = "provider: a succeeded charge was captured in full"
		nothing  = "provider: a failed charge was not captured"
		canceled = "provider: a failed charge's payment intent is canceled"
		known    = "provider: every capture is a charge's in the ledger"
		equal    = "provider: captured sums equal the books'"
	)

	for _, tt := range []struct {
		name    string
		intents []audit.Intent
		want    map[string]bool
	}{
		{"what_the_ledger_says_is_in_order", w.intents(), set()},
		{
			"a_capture_whose_record_is_under_way_is_in_order",
			change("pi_paying", func(in *audit.Intent) { in.Status, in.AmountReceived = "succeeded", 1000 }), set(),
		},
		{"a_second_capture_is_found", took("pi_second", w.charges["sold"]), set(once, known, equal)},
		{"a_success_without_money_is_found", without("pi_sold"), set(inFull, equal)},
		{"an_empty_list_is_not_believed", nil, set(inFull, canceled, equal)},
		{
			"a_success_whose_intent_took_nothing_is_found",
			change("pi_sold", func(in *audit.Intent) { in.Status, in.AmountReceived = "requires_capture", 0 }), set(inFull, equal),
		},
		{
			"another_amount_is_found",
			change("pi_sold", func(in *audit.Intent) { in.Amount, in.AmountReceived = 999, 999 }), set(inFull, equal),
		},
		{
			"another_currency_is_found",
			change("pi_sold", func(in *audit.Intent) { in.Currency = "EUR" }), set(inFull, equal),
		},
		{
			"money_of_a_failed_charge_is_found",
			change("pi_declined", func(in *audit.Intent) { in.Status, in.AmountReceived = "succeeded", 1000 }), set(nothing, canceled, equal),
		},
		{
			"money_taken_by_a_failed_charge's_orphan_is_found",
			change("pi_orphan", func(in *audit.Intent) { in.Status, in.AmountReceived = "succeeded", 1000 }), set(nothing, equal),
		},
		{
			"a_failed_charge_that_could_still_be_paid_is_found",
			change("pi_declined", func(in *audit.Intent) { in.Status = "requires_payment_method" }), set(canceled),
		},
		{"money_for_an_unknown_charge_is_found", took("pi_stray", "ch_none"), set(known)},
		{"money_for_nobody_is_found", took("pi_stray", ""), set(known)},
		{"money_taken_by_an_open_charge's_orphan_is_found", took("pi_stray", w.charges["paying"]), set(known)},
		{
			"a_capture_that_says_it_is_another_charge's_is_found",
			change("pi_sold", func(in *audit.Intent) { in.Reference = w.charges["bought"] }), set(inFull, once, known),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			checks, err := audit.Reconcile(t.Context(), w.db, list(tt.intents...), list(w.refunds()...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, violated(checks)); diff != "" {
				t.Errorf("violated (-want +got):\n%s\n%+v", diff, checks)
			}
			for _, c := range checks {
				if c.Checked == 0 && len(tt.intents) > 0 {
					t.Errorf("%s: looked at nothing", c.Name)
				}
			}
		})
	}
}

func TestReconcile_beside_traffic(t *testing.T) {
	t.Parallel()

	t.Run("a_charge_that_succeeds_after_the_list_was_read_is_in_order", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		listed := func(yield func(audit.Intent, error) bool) {
			for in, err := range list(w.intents()...) { // pi_paying took nothing yet
				if !yield(in, err) {
					return
				}
			}
			w.accept("late", false)
			w.receive()
			w.reserve("late")
			w.capture("late")
		}
		checks, err := audit.Reconcile(t.Context(), w.db, listed, list(w.refunds()...))
		if err != nil {
			t.Fatal(err)
		}
		if got := violated(checks); len(got) != 0 {
			t.Fatalf("violated: %v", got)
		}
	})

	t.Run("a_charge_accepted_and_captured_before_the_list_was_read_is_in_order", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		listed := func(yield func(audit.Intent, error) bool) {
			w.accept("early", false)
			w.receive()
			w.reserve("early")
			w.capture("early")
			early := audit.Intent{
				ID: "pi_early", Reference: w.charges["early"], Status: "succeeded",
				Amount: 1000, AmountReceived: 1000, Currency: "USD",
			}
			for in, err := range list(append(w.intents(), early)...) {
				if !yield(in, err) {
					return
				}
			}
		}
		checks, err := audit.Reconcile(t.Context(), w.db, listed, list(w.refunds()...))
		if err != nil {
			t.Fatal(err)
		}
		if got := violated(checks); len(got) != 0 {
			t.Fatalf("violated: %v", got)
		}
	})
}

func TestReconcile_books_that_lack_a_capture(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(breakable + `delete from ledger_postings where stream_id = '{sold}' and debit like 'psp_receivable:%'`)
	want := set("provider: captured sums equal the books'")
	if diff := cmp.Diff(want, violated(w.reconcile(w.intents(), w.refunds()))); diff != "" {
		t.Errorf("violated (-want +got):\n%s", diff)
	}
}

func TestReconcile_lists_that_break_off(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	down := errors.New("down")
	for name, run := range map[string]func(context.Context) error{
		"intents": func(ctx context.Context) error {
			_, err := audit.Reconcile(ctx, w.db, broken[audit.Intent](down), list(w.refunds()...))
			return err
		},
		"refunds": func(ctx context.Context) error {
			_, err := audit.Reconcile(ctx, w.db, list(w.intents()...), broken[audit.Refund](down))
			return err
		},
	} {
		if err := run(t.Context()); !errors.Is(err, down) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
