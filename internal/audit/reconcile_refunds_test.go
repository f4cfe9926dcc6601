package audit_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestReconcile_refunds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	change := func(id string, change func(*audit.Refund)) []audit.Refund {
		refunds := w.refunds()
		change(&refunds[slices.IndexFunc(refunds, func(r audit.Refund) bool { return r.ID == id })])
		return refunds
	}
	gave := func(id, reference, status string, amount int64) []audit.Refund {
		return append(w.refunds(), audit.Refund{
			ID: id, Reference: reference, PaymentIntent: "pi_refunded", Status: status, Amount: amount, Currency: "USD",
		})
	}
	const (
		once    = "provider: one refund per refund"
		inFull  = "provider: a succeeded refund was given back in full"
		nothing = "provider: a failed refund gave nothing back"
		known   = "provider: every refund is one of the ledger's"
		equal   = "provider: refunded sums equal the books'"
	)

	for _, tt := range []struct {
		name    string
		refunds []audit.Refund
		want    map[string]bool
	}{
		{"what_the_ledger_says_is_in_order", w.refunds(), set()},
		{"a_refund_whose_record_is_under_way_is_in_order", gave("re_1", w.charges["returning"], "succeeded", 300), set()},
		{"a_refund_that_is_pending_at_both_is_in_order", gave("re_1", w.charges["returning"], "pending", 300), set()},
		{"a_refund_of_nobody's_that_gave_nothing_back_is_in_order", gave("re_1", "", "failed", 300), set()},
		{"an_attempt_that_failed_before_the_one_that_succeeded_is_in_order", gave("re_0", w.charges["part"], "failed", 400), set()},
		{"a_second_refund_is_found", gave("re_2", w.charges["part"], "succeeded", 400), set(once, known, equal)},
		{"a_second_refund_that_may_yet_succeed_is_found", gave("re_2", w.charges["part"], "pending", 400), set(once, known, equal)},
		{"an_empty_list_is_not_believed", nil, set(inFull, equal)},
		{
			"a_success_that_the_provider_took_back_is_found",
			change("re_part", func(r *audit.Refund) { r.Status = "failed" }), set(inFull, equal),
		},
		{
			"a_success_that_is_pending_is_found",
			change("re_part", func(r *audit.Refund) { r.Status = "pending" }), set(inFull),
		},
		{
			"another_amount_is_found",
			change("re_part", func(r *audit.Refund) { r.Amount = 401 }), set(inFull, equal),
		},
		{
			"another_currency_is_found",
			change("re_part", func(r *audit.Refund) { r.Currency = "EUR" }), set(inFull, equal),
		},
		{
			"money_of_another_capture_is_found",
			change("re_part", func(r *audit.Refund) { r.PaymentIntent = "pi_sold" }), set(inFull),
		},
		{
			"a_refund_that_says_it_is_another_one_is_found",
			change("re_part", func(r *audit.Refund) { r.Reference = w.charges["returning"] }), set(inFull, known, equal),
		},
		{
			"money_given_for_a_failed_refund_is_found",
			change("re_bounced", func(r *audit.Refund) { r.Status = "succeeded" }), set(nothing, equal),
		},
		{
			"money_given_for_a_reversed_refund_is_found",
			change("re_reversed", func(r *audit.Refund) { r.Status = "succeeded" }), set(nothing, equal),
		},
		{"money_given_for_an_unknown_refund_is_found", gave("re_1", "re_none", "succeeded", 300), set(known)},
		{"money_given_for_nobody_is_found", gave("re_1", "", "succeeded", 300), set(known)},
		{"another_amount_of_a_pending_refund_is_found", gave("re_1", w.charges["returning"], "succeeded", 301), set(known)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			checks, err := audit.Reconcile(t.Context(), w.db, list(w.intents()...), list(tt.refunds...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, violated(checks)); diff != "" {
				t.Errorf("violated (-want +got):\n%s\n%+v", diff, checks)
			}
			for _, c := range checks {
				if c.Checked == 0 && c.Name != known {
					t.Errorf("%s: looked at nothing", c.Name)
				}
			}
		})
	}
}

func TestReconcile_refunds_beside_traffic(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(w *world){
		"a_refund_that_succeeds_after_the_list_was_read_is_in_order": func(w *world) {
			w.settle(domain.SucceedRefund{
				RefundID: w.charges["returning"], Provider: domain.Provider, ProviderRefund: "re_returning",
				Amount: domain.Money{Amount: 300, Currency: "USD"},
			})
		},
		"a_refund_that_is_reversed_after_the_list_was_read_is_in_order": func(w *world) {
			w.settle(domain.ReverseRefund{RefundID: w.charges["part"], ProviderRefund: "re_part"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			listed := func(yield func(audit.Refund, error) bool) {
				for r, err := range list(w.refunds()...) {
					if !yield(r, err) {
						return
					}
				}
				run(w)
			}
			checks, err := audit.Reconcile(t.Context(), w.db, list(w.intents()...), listed)
			if err != nil {
				t.Fatal(err)
			}
			if got := violated(checks); len(got) != 0 {
				t.Fatalf("violated: %v", got)
			}
		})
	}
}

func TestReconcile_books_that_lack_a_refund(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := newWorld(t)
	w.exec(breakable + `delete from ledger_postings where stream_id = '{refunded}' and credit like 'psp_receivable:%' and amount = 400`)
	want := set("provider: refunded sums equal the books'")
	if diff := cmp.Diff(want, violated(w.reconcile(w.intents(), w.refunds()))); diff != "" {
		t.Errorf("violated (-want +got):\n%s", diff)
	}
}
