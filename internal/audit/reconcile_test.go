package audit_test

import (
	"errors"
	"iter"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
)

func (w *world) payment(name, status string, captured int64) audit.Listed {
	id := "pi_" + name
	return audit.Listed{
		ID: id, Reference: w.charges[name], PaymentIntent: id, Status: status, Amount: captured, Currency: "USD",
	}
}

func (w *world) refundOf(name, status string, amount int64) audit.Listed {
	return audit.Listed{
		ID: "re_" + name, Reference: w.charges[name], PaymentIntent: "pi_refunded", Status: status, Amount: amount, Currency: "USD",
	}
}

// payments is the list of a provider that did what the world's ledger says, and made an
// orphan that never took money.
func (w *world) payments() []audit.Listed {
	orphan := w.payment("declined", "requires_confirmation", 0)
	orphan.ID, orphan.PaymentIntent = "pi_orphan", "pi_orphan"
	return []audit.Listed{
		w.payment("paying", "requires_confirmation", 0),
		w.payment("undelivered", "succeeded", 1000),
		orphan,
		w.payment("declined", "canceled", 0),
		w.payment("refunded", "succeeded", 1000),
		w.payment("bought", "succeeded", 1000),
		w.payment("sold", "succeeded", 1000),
	}
}

func (w *world) refunds() []audit.Listed {
	return []audit.Listed{
		w.refundOf("reversed", "failed", 100),
		w.refundOf("bounced", "failed", 200),
		w.refundOf("part", "succeeded", 400),
	}
}

func list(items []audit.Listed) iter.Seq2[audit.Listed, error] {
	return func(yield func(audit.Listed, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

func (w *world) reconcile(t *testing.T, payments, refunds iter.Seq2[audit.Listed, error]) []audit.Check {
	t.Helper()
	checks, err := audit.Reconcile(t.Context(), w.db, payments, refunds)
	if err != nil {
		t.Fatal(err)
	}
	return checks
}

// edit is what a provider's list says otherwise.
type edit func([]audit.Listed) []audit.Listed

func change(id string, change func(*audit.Listed)) edit {
	return func(all []audit.Listed) []audit.Listed {
		change(&all[slices.IndexFunc(all, func(l audit.Listed) bool { return l.ID == id })])
		return all
	}
}

func status(id, status string, amount int64) edit {
	return change(id, func(l *audit.Listed) { l.Status, l.Amount = status, amount })
}

func more(id, reference, intent, status string, amount int64) edit {
	return func(all []audit.Listed) []audit.Listed {
		return append(all, audit.Listed{ID: id, Reference: reference, PaymentIntent: intent, Status: status, Amount: amount, Currency: "USD"})
	}
}

func none([]audit.Listed) []audit.Listed { return nil }

func TestReconcile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	took := func(id, charge string) edit { return more(id, charge, id, "succeeded", 1000) }
	gave := func(id, reference, status string, amount int64) edit {
		return more(id, reference, "pi_refunded", status, amount)
	}
	const (
		once     = "provider: one capture per charge"
		inFull   = "provider: a succeeded charge was captured in full"
		nothing  = "provider: a failed charge was not captured"
		canceled = "provider: a failed charge's payment intent is canceled"
		known    = "provider: every capture is a charge's in the ledger"
		equal    = "provider: captured sums equal the books'"

		refundOnce    = "provider: one refund per refund"
		refundInFull  = "provider: a succeeded refund was given back in full"
		refundNothing = "provider: a failed refund gave nothing back"
		refundKnown   = "provider: every refund is one of the ledger's"
		refundEqual   = "provider: refunded sums equal the books'"
	)
	same := func(all []audit.Listed) []audit.Listed { return all }
	for _, tt := range []struct {
		name              string
		payments, refunds edit
		want              map[string]bool
	}{
		{"what the ledger says is in order", same, same, set()},
		{"a capture that is not recorded yet is in order", status("pi_paying", "succeeded", 1000), same, set()},
		{"a second capture", took("pi_second", w.charges["sold"]), same, set(once, known, equal)},
		{"a success without money", func(all []audit.Listed) []audit.Listed {
			return slices.DeleteFunc(all, func(l audit.Listed) bool { return l.ID == "pi_sold" })
		}, same, set(inFull, equal)},
		{"an empty list of payments", none, same, set(inFull, canceled, equal)},
		{"a success whose intent took nothing", status("pi_sold", "requires_capture", 0), same, set(inFull, equal)},
		{"another amount", status("pi_sold", "succeeded", 999), same, set(inFull, equal)},
		{"another currency", change("pi_sold", func(l *audit.Listed) { l.Currency = "EUR" }), same, set(inFull, equal)},
		{"money of a failed charge", status("pi_declined", "succeeded", 1000), same, set(nothing, canceled, equal)},
		{"money taken by a failed charge's orphan", status("pi_orphan", "succeeded", 1000), same, set(nothing, equal)},
		{"a failed charge that could still be paid", status("pi_declined", "requires_payment_method", 0), same, set(canceled)},
		{"money for an unknown charge", took("pi_stray", "ch_none"), same, set(known)},
		{"money without a reference", took("pi_stray", ""), same, set(known)},
		{"money taken by an open charge's orphan", took("pi_stray", w.charges["paying"]), same, set(known)},
		{
			"a capture that says it is another charge's",
			change("pi_sold", func(l *audit.Listed) { l.Reference = w.charges["bought"] }), same, set(inFull, once, known),
		},

		{"a refund that is not recorded yet is in order", same, gave("re_1", w.charges["returning"], "succeeded", 300), set()},
		{"a refund that is pending at both is in order", same, gave("re_1", w.charges["returning"], "pending", 300), set()},
		{"a failed refund without a reference is in order", same, gave("re_1", "", "failed", 300), set()},
		{"an attempt that failed before the one that succeeded is in order", same, gave("re_0", w.charges["part"], "failed", 400), set()},
		{"a second refund", same, gave("re_2", w.charges["part"], "succeeded", 400), set(refundOnce, refundKnown, refundEqual)},
		{"a second refund that may yet succeed", same, gave("re_2", w.charges["part"], "pending", 400), set(refundOnce, refundKnown, refundEqual)},
		{"an empty list of refunds", same, none, set(refundInFull, refundEqual)},
		{"a success that the provider took back", same, status("re_part", "failed", 400), set(refundInFull, refundEqual)},
		{"a success that is pending", same, status("re_part", "pending", 400), set(refundInFull)},
		{"a refund of another amount", same, status("re_part", "succeeded", 401), set(refundInFull, refundEqual)},
		{"a refund in another currency", same, change("re_part", func(l *audit.Listed) { l.Currency = "EUR" }), set(refundInFull, refundEqual)},
		{"money of another capture", same, change("re_part", func(l *audit.Listed) { l.PaymentIntent = "pi_sold" }), set(refundInFull)},
		{
			"a refund that says it is another one", same,
			change("re_part", func(l *audit.Listed) { l.Reference = w.charges["returning"] }), set(refundInFull, refundKnown, refundEqual),
		},
		{"money given for a failed refund", same, status("re_bounced", "succeeded", 200), set(refundNothing, refundEqual)},
		{"money given for a reversed refund", same, status("re_reversed", "succeeded", 100), set(refundNothing, refundEqual)},
		{"money given for an unknown refund", same, gave("re_1", "re_none", "succeeded", 300), set(refundKnown)},
		{"money given without a reference", same, gave("re_1", "", "succeeded", 300), set(refundKnown)},
		{"another amount of a pending refund", same, gave("re_1", w.charges["returning"], "succeeded", 301), set(refundKnown)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			payments, refunds := tt.payments(w.payments()), tt.refunds(w.refunds())
			checks := w.reconcile(t, list(payments), list(refunds))
			if diff := cmp.Diff(tt.want, violated(checks)); diff != "" {
				t.Errorf("violated (-want +got):\n%s\n%+v", diff, checks)
			}
			for _, c := range checks {
				if c.Checked == 0 && c.Name != refundKnown && len(payments) > 0 {
					t.Errorf("%s: is over no case", c.Name)
				}
			}
		})
	}
}

// TestReconcile_besideTraffic records outcomes before or after a list is read.
func TestReconcile_besideTraffic(t *testing.T) {
	t.Parallel()
	capture := func(name string) func(*world) {
		return func(w *world) {
			w.accept(name, false)
			w.receive()
			w.reserve(name)
			w.capture(name)
		}
	}
	for name, test := range map[string]struct {
		before, afterPayments, afterRefunds func(*world)
	}{
		"a charge is captured before the list": {before: capture("early")},
		"a charge is captured after the list":  {afterPayments: capture("late")},
		"a refund succeeds after the list": {afterRefunds: func(w *world) {
			w.settle(domain.SucceedRefund{
				RefundID: w.charges["returning"], Provider: domain.Provider, ProviderRefund: "re_returning",
				Amount: domain.Money{Amount: 300, Currency: "USD"},
			})
		}},
		"a refund is reversed after the list": {afterRefunds: func(w *world) {
			w.settle(domain.ReverseRefund{RefundID: w.charges["part"], ProviderRefund: "re_part"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			payments := func(yield func(audit.Listed, error) bool) {
				all := w.payments()
				if test.before != nil {
					test.before(w)
					all = append(all, w.payment("early", "succeeded", 1000))
				}
				list(all)(yield)
				if test.afterPayments != nil {
					test.afterPayments(w)
				}
			}
			refunds := func(yield func(audit.Listed, error) bool) {
				list(w.refunds())(yield)
				if test.afterRefunds != nil {
					test.afterRefunds(w)
				}
			}
			if got := violated(w.reconcile(t, payments, refunds)); len(got) != 0 {
				t.Errorf("violated: %v", got)
			}
		})
	}
}

func TestReconcile_findsWhatTheBooksLack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(breakable + `
delete from ledger_postings where stream_id = '{sold}' and debit like 'psp_receivable:%';
delete from ledger_postings where stream_id = '{refunded}' and credit like 'psp_receivable:%' and amount = 400`)
	want := set("provider: captured sums equal the books'", "provider: refunded sums equal the books'")
	if diff := cmp.Diff(want, violated(w.reconcile(t, list(w.payments()), list(w.refunds())))); diff != "" {
		t.Errorf("violated (-want +got):\n%s", diff)
	}
}

func TestReconcile_endsWithAListThatBreaksOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	down := errors.New("down")
	broken := func(yield func(audit.Listed, error) bool) { yield(audit.Listed{}, down) }
	if _, err := audit.Reconcile(t.Context(), w.db, broken, list(w.refunds())); !errors.Is(err, down) {
		t.Errorf("of payments: %v", err)
	}
	if _, err := audit.Reconcile(t.Context(), w.db, list(w.payments()), broken); !errors.Is(err, down) {
		t.Errorf("of refunds: %v", err)
	}
}
