package audit_test

import (
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func (f *fixture) payment(name, status string, captured int64) audit.Listed {
	id := "pi_" + name
	return audit.Listed{
		ID: id, Reference: f.ids[name], PaymentIntent: id, Status: status, Amount: captured, Currency: "USD",
	}
}

func (f *fixture) refundOf(name, status string, amount int64) audit.Listed {
	return audit.Listed{
		ID: "re_" + name, Reference: f.ids[name], PaymentIntent: "pi_refunded", Status: status, Amount: amount, Currency: "USD",
	}
}

// payments is the list of a provider that did what the world's ledger says, and made an
// orphan that never took money.
func (f *fixture) payments() []audit.Listed {
	orphan := f.payment("declined", "requires_confirmation", 0)
	orphan.ID, orphan.PaymentIntent = "pi_orphan", "pi_orphan"
	return []audit.Listed{
		f.payment("paying", "requires_confirmation", 0),
		f.payment("undelivered", "succeeded", 1000),
		orphan,
		f.payment("declined", "canceled", 0),
		f.payment("refunded", "succeeded", 1000),
		f.payment("bought", "succeeded", 1000),
		f.payment("sold", "succeeded", 1000),
	}
}

func (f *fixture) refunds() []audit.Listed {
	return []audit.Listed{
		f.refundOf("reversed", "failed", 100),
		f.refundOf("bounced", "failed", 200),
		f.refundOf("part", "succeeded", 400),
		{ID: "re_outside", PaymentIntent: "pi_bought", Status: "succeeded", Amount: 100, Currency: "USD"},
	}
}

func disputes() []audit.Listed {
	return []audit.Listed{{ID: "du_1", PaymentIntent: "pi_bought", Status: "open", Amount: 1015, Currency: "USD", Moves: "txn_1"}}
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

func (f *fixture) reconcile(t *testing.T, payments, refunds iter.Seq2[audit.Listed, error]) []audit.Check {
	t.Helper()
	checks, _, err := audit.Reconcile(t.Context(), f.db, audit.Provided{Payments: payments, Refunds: refunds, Disputes: list(disputes())})
	testdb.Must(t, err)
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
	f := newFixture(t)
	took := func(id, charge string) edit { return more(id, charge, id, "succeeded", 1000) }
	gave := func(id, reference, status string, amount int64) edit {
		return more(id, reference, "pi_refunded", status, amount)
	}
	const (
		once    = "provider: one capture per charge"
		inFull  = "provider: a succeeded charge was captured in full"
		nothing = "provider: a failed charge was not captured, and its intent is canceled"
		known   = "provider: every capture is a charge's in the ledger"
		equal   = "provider: captured sums equal the ledger's"

		refundOnce    = "provider: one refund for each refund"
		refundInFull  = "provider: a succeeded refund was returned in full"
		refundNothing = "provider: a failed refund returned nothing"
		refundKnown   = "provider: every refund is one of the ledger's"
		refundEqual   = "provider: refunded sums equal the ledger's"
	)
	same := func(all []audit.Listed) []audit.Listed { return all }
	referring := func(all []audit.Listed) []audit.Listed { // as intents name the charges of keys
		for i, l := range all {
			testdb.Must(t, f.db.QueryRow(t.Context(), `select data ->> 'reference' from ledger_events where version = 1 and stream_id = $1`, l.Reference).Scan(&all[i].Reference))
		}
		return all
	}
	tests := []struct {
		name              string
		payments, refunds edit
		want              []string
	}{
		{"what the ledger says is in order", same, same, nil},
		{"references in place of ids", referring, same, nil},
		{"a capture that is not recorded yet is in order", status("pi_paying", "succeeded", 1000), same, nil},
		{"a second capture", took("pi_second", f.ids["sold"]), same, []string{once, known, equal}},
		{"a success without money", func(all []audit.Listed) []audit.Listed {
			return slices.DeleteFunc(all, func(l audit.Listed) bool { return l.ID == "pi_sold" })
		}, same, []string{inFull, equal}},
		{"an empty list of payments", none, same, []string{inFull, nothing, equal, refundInFull, refundEqual, "provider: withheld sums equal the ledger's"}},
		{"a success whose intent took nothing", status("pi_sold", "requires_capture", 0), same, []string{inFull, equal}},
		{"another amount", status("pi_sold", "succeeded", 999), same, []string{inFull, equal}},
		{"another currency", change("pi_sold", func(l *audit.Listed) { l.Currency = "EUR" }), same, []string{inFull, equal}},
		{"money of a failed charge", status("pi_declined", "succeeded", 1000), same, []string{nothing, equal}},
		{"money taken by a failed charge's orphan", status("pi_orphan", "succeeded", 1000), same, []string{nothing, equal}},
		{"a failed charge that could still be paid", status("pi_declined", "requires_payment_method", 0), same, []string{nothing}},
		{"money for an unknown charge", took("pi_stray", "ch_none"), same, []string{known}},
		{"an unknown charge's money that was returned", took("pi_stray", "ref_lost"), more("re_1", "", "pi_stray", "succeeded", 1000), nil},
		{"an unknown charge's money that was returned in part", took("pi_stray", "ref_lost"), more("re_1", "", "pi_stray", "succeeded", 999), []string{known, refundKnown}},
		{"an unknown charge's money whose return is pending", took("pi_stray", "ref_lost"), more("re_1", "", "pi_stray", "pending", 1000), []string{known}},
		{"a second capture that was returned", took("pi_second", f.ids["sold"]), more("re_1", "", "pi_second", "succeeded", 1000), nil},
		{"money of others in the account", took("pi_foreign", ""), more("re_1", "", "pi_foreign", "succeeded", 300), nil},
		{"money taken by an open charge's orphan", took("pi_stray", f.ids["paying"]), same, []string{known}},
		{
			"a capture that says it is another charge's",
			change("pi_sold", func(l *audit.Listed) { l.Reference = f.ids["bought"] }), same,
			[]string{inFull, once, known},
		},

		{"a refund that is not recorded yet is in order", same, gave("re_1", f.ids["returning"], "succeeded", 300), nil},
		{"a refund that is pending at both is in order", same, gave("re_1", f.ids["returning"], "pending", 300), nil},
		{"a failed refund without a reference is in order", same, gave("re_1", "", "failed", 300), nil},
		{"an attempt that failed before the one that succeeded is in order", same, gave("re_0", f.ids["part"], "failed", 400), nil},
		{"a second refund", same, gave("re_2", f.ids["part"], "succeeded", 400), []string{refundOnce, refundKnown, refundEqual}},
		{"a second refund that may yet succeed", same, gave("re_2", f.ids["part"], "pending", 400), []string{refundOnce, refundKnown, refundEqual}},
		{"an empty list of refunds", same, none, []string{refundInFull, refundEqual}},
		{"a success that the provider took back", same, status("re_part", "failed", 400), []string{refundInFull, refundEqual}},
		{"a success that is pending", same, status("re_part", "pending", 400), []string{refundInFull}},
		{"a refund of another amount", same, status("re_part", "succeeded", 401), []string{refundInFull, refundEqual}},
		{"a refund in another currency", same, change("re_part", func(l *audit.Listed) { l.Currency = "EUR" }), []string{refundInFull, refundEqual}},
		{"money of another capture", same, change("re_part", func(l *audit.Listed) { l.PaymentIntent = "pi_sold" }), []string{refundInFull}},
		{
			"a refund that says it is another one", same,
			change("re_part", func(l *audit.Listed) { l.Reference = f.ids["returning"] }),
			[]string{refundInFull, refundKnown, refundEqual},
		},
		{"money given for a failed refund", same, status("re_bounced", "succeeded", 200), []string{refundNothing, refundEqual}},
		{"money given for a reversed refund", same, status("re_reversed", "succeeded", 100), []string{refundNothing, refundEqual}},
		{"money given for an unknown refund", same, gave("re_1", "re_none", "succeeded", 300), []string{refundKnown}},
		{"a refund made outside that is pending is in order", same, gave("re_1", "", "pending", 300), nil},
		{"money given without a reference", same, gave("re_1", "", "succeeded", 300), []string{refundKnown}},
		{"another amount of a pending refund", same, gave("re_1", f.ids["returning"], "succeeded", 301), []string{refundKnown}},
	}
	var broken []string
	for _, tt := range tests {
		broken = append(broken, tt.want...)
	}
	judged := judgedBy(f.reconcile(t, list(f.payments()), list(f.refunds())))
	testrun.Same(t, "checks that a case violates", slices.Compact(sorted(judged)), slices.Compact(sorted(append(broken, ofDisputes...))))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			payments, refunds := tt.payments(f.payments()), tt.refunds(f.refunds())
			checks := f.reconcile(t, list(payments), list(refunds))
			if diff := cmp.Diff(sorted(tt.want), violated(checks)); diff != "" {
				t.Errorf("violated (-want +got):\n%s\n%+v", diff, checks)
			}
			for _, c := range checks {
				if foreign := strings.HasSuffix(c.Name, ", not judged"); foreign && (c.Checked > 0) != (strings.Contains(tt.name, "of others") || len(payments) == 0) {
					t.Errorf("%s: %d are counted", c.Name, c.Checked)
				} else if !foreign && c.Checked == 0 && c.Name != refundKnown && len(payments) > 0 {
					t.Errorf("%s: is over no case", c.Name)
				}
			}
		})
	}
}

// judgedBy are the names of the checks that can be violated: what is foreign is counted alone.
func judgedBy(checks []audit.Check) (names []string) {
	for _, c := range checks {
		if !strings.HasSuffix(c.Name, ", not judged") {
			names = append(names, c.Name)
		}
	}
	return names
}

// ofDisputes are the checks that TestReconcile_disputes violates.
var ofDisputes = []string{
	"provider: every dispute is one of the ledger's",
	"provider: a dispute is in the ledger as the provider has it",
	"provider: withheld sums equal the ledger's",
}

func TestReconcile_disputes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	known, listed, equal := ofDisputes[0], ofDisputes[1], ofDisputes[2]
	changed := func(status string, amount int64) []audit.Listed {
		return change("du_1", func(l *audit.Listed) { l.Status, l.Amount = status, amount })(disputes())
	}
	for name, test := range map[string]struct {
		listed []audit.Listed
		want   []string
		missed string
	}{
		"what the ledger says is in order":       {disputes(), nil, ""},
		"one that the provider does not have":    {nil, []string{equal}, ""},
		"one that the ledger has not observed":   {append(disputes(), audit.Listed{ID: "du_2", PaymentIntent: "pi_sold", Amount: 10, Currency: "USD"}), []string{known}, "sold"},
		"one of others in the account":           {append(disputes(), audit.Listed{ID: "du_2", PaymentIntent: "pi_foreign", Amount: 10, Currency: "USD"}), nil, ""},
		"one that was reinstated and not booked": {changed("open", 0), []string{equal, listed}, "bought"},
		"one that ended otherwise":               {changed("won", 1015), []string{listed}, "bought"},
		"one with another movement":              {change("du_1", func(l *audit.Listed) { l.Moves = "txn_1 txn_2 txn_3" })(disputes()), []string{listed}, "bought"},
	} {
		checks, missed, err := audit.Reconcile(t.Context(), f.db, audit.Provided{Payments: list(f.payments()), Refunds: list(f.refunds()), Disputes: list(test.listed)})
		if diff := cmp.Diff(sorted(test.want), violated(checks)); diff != "" || err != nil || strings.Join(missed, "") != f.ids[test.missed] {
			t.Errorf("%s: %v, missed %s, violated (-want +got):\n%s", name, err, missed, diff)
		}
	}
}

// TestReconcile_besideTraffic records outcomes before or after a list is read.
func TestReconcile_besideTraffic(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, afterPayments, afterRefunds func(*fixture)
	}{
		"a charge is captured before the list": {before: func(f *fixture) { f.pay("early") }},
		"a charge is captured after the list":  {afterPayments: func(f *fixture) { f.pay("late") }},
		"a refund succeeds after the list": {afterRefunds: func(f *fixture) {
			f.endRefund("returning", "re_returning", false)
		}},
		"a refund is reversed after the list": {afterRefunds: func(f *fixture) {
			f.endRefund("part", "re_part", true)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			payments := func(yield func(audit.Listed, error) bool) {
				all := f.payments()
				if test.before != nil {
					test.before(f)
					all = append(all, f.payment("early", "succeeded", 1000))
				}
				list(all)(yield)
				if test.afterPayments != nil {
					test.afterPayments(f)
				}
			}
			refunds := func(yield func(audit.Listed, error) bool) {
				list(f.refunds())(yield)
				if test.afterRefunds != nil {
					test.afterRefunds(f)
				}
			}
			if got := violated(f.reconcile(t, payments, refunds)); len(got) != 0 {
				t.Errorf("violated: %v", got)
			}
		})
	}
}

func TestReconcile_findsWhatTheLedgerLacks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run("breakable")
	f.exec(`
delete from ledger_postings where stream_id = '{sold}' and debit like 'psp_receivable:%';
delete from ledger_postings where stream_id = '{refunded}' and credit like 'psp_receivable:%' and amount = 400`)
	want := []string{"provider: captured sums equal the ledger's", "provider: refunded sums equal the ledger's"}
	testrun.Same(t, "violated", sorted(want), violated(f.reconcile(t, list(f.payments()), list(f.refunds()))))
}

func TestReconcile_endsWithAListThatBreaksOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	down := errors.New("down")
	broken := func(yield func(audit.Listed, error) bool) { yield(audit.Listed{}, down) }
	for i := range 3 {
		lists := []iter.Seq2[audit.Listed, error]{list(f.payments()), list(f.refunds()), list(disputes())}
		lists[i] = broken
		if _, _, err := audit.Reconcile(t.Context(), f.db, audit.Provided{Payments: lists[0], Refunds: lists[1], Disputes: lists[2]}); !errors.Is(err, down) {
			t.Errorf("list %d: %v", i, err)
		}
	}
}
