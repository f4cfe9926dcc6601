package domain_test

import (
	"slices"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
)

// check holds after every command.
func (m *model) check(t *rapid.T) {
	if _, err := domain.Replay(m.events); err != nil {
		t.Fatalf("Decide made a stream that Replay refuses: %v", err)
	}
	captures, outcomes := 0, 0
	before := domain.Charge{ID: "ch_1"}
	for _, e := range m.events {
		switch domain.TypeOf(e) {
		case "payment.captured.v1":
			captures++
		case "charge.succeeded.v1", "charge.failed.v1":
			outcomes++
		}
		for _, p := range domain.Postings(before, e) {
			if p.Amount <= 0 || p.Debit == p.Credit || p.Currency != m.charge.Amount.Currency {
				t.Fatalf("%T causes the posting %+v", e, p)
			}
		}
		before = domain.Fold(before, e)
	}
	if captures > 1 || outcomes > 1 {
		t.Fatalf("%d captures, %d outcomes", captures, outcomes)
	}
	m.checkCharge(t)
	m.checkBalances(t)
}

// checkCharge compares what the charge says of itself with the model.
func (m *model) checkCharge(t *rapid.T) {
	pending, succeeded := m.sum(domain.RefundStatusPending), m.sum(domain.RefundStatusSucceeded)
	if pending+succeeded > m.captured {
		t.Fatalf("%d refunded and %d to be of %d captured", succeeded, pending, m.captured)
	}
	status := m.status
	switch {
	case succeeded > 0 && succeeded == m.captured:
		status = domain.Refunded
	case succeeded > 0:
		status = domain.PartiallyRefunded
	}
	type account struct {
		Status          domain.Status
		Left, Refunded  int64
		Terminal        bool
		Pending         bool // a refund
		CancelRequested bool
		Notified        bool
		Unnotified      []int
	}
	want := account{
		Status: status, Left: m.captured - pending - succeeded, Refunded: succeeded,
		Terminal: m.outcome > 0, Pending: pending > 0,
		CancelRequested: m.cancelRequested, Notified: m.outcome > 0 && !m.silent && !slices.Contains(m.unnotified, m.outcome),
	}
	c := m.charge
	own := account{
		Status: c.Status, Left: c.Left(), Refunded: c.Refunded(),
		Terminal: c.Terminal(), Pending: len(c.PendingRefunds()) > 0, CancelRequested: c.CancelRequested, Notified: c.Step(domain.Notification) == domain.StepDone,
	}
	for version := -1; version <= len(m.events)+1; version++ {
		if c.NeedsWebhook(version) {
			own.Unnotified = append(own.Unnotified, version)
		}
		if slices.Contains(m.unnotified, version) {
			want.Unnotified = append(want.Unnotified, version)
		}
	}
	if diff := cmp.Diff(want, own); diff != "" {
		t.Fatalf("the charge (-model +charge):\n%s", diff)
	}
	m.checkRefunds(t)
}

// checkBalances compares the balances of the charge with its outcome and its refunds. A
// charge is in one currency, so all its accounts are.
func (m *model) checkBalances(t *rapid.T) {
	want := map[string]int64{}
	set := func(account string, balance int64) {
		if balance != 0 {
			want[account+":"+string(m.charge.Amount.Currency)] = balance
		}
	}
	pending, succeeded := m.sum(domain.RefundStatusPending), m.sum(domain.RefundStatusSucceeded)
	switch {
	case m.status == domain.Pending:
		set("customer_receivable:acme", m.charge.Amount.Amount)
		set("merchant_pending:acme", -m.charge.Amount.Amount)
	case m.captured > 0:
		set("psp_receivable:stripe", m.captured-succeeded)
		set("merchant_payable:acme", -(m.captured - m.charge.Fee - pending - succeeded))
		set("fee_revenue:payonce", -m.charge.Fee)
		set("refund_clearing:acme", -pending)
	}
	if diff := cmp.Diff(want, balances(m.events)); diff != "" {
		t.Fatalf("balances (-want +got):\n%s", diff)
	}
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
