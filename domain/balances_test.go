package domain_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// balances are the books of a stream: debits less credits of each account, those
// that are even left out.
func balances(events []domain.Event) map[string]int64 {
	books := map[string]int64{}
	c := domain.Charge{ID: "ch_1"}
	for _, e := range events {
		for _, p := range domain.Postings(c, e) {
			books[p.Debit] += p.Amount
			books[p.Credit] -= p.Amount
		}
		c = domain.Fold(c, e)
	}
	for account, balance := range books {
		if balance == 0 {
			delete(books, account)
		}
	}
	return books
}

// The clearing rule, state by state: what the customer owes and what the
// merchant may expect are even once there is an outcome, and what is being given
// back is the sum of the refunds on their way.
func TestBalances(t *testing.T) {
	t.Parallel()
	const (
		receivable = "customer_receivable:acme:EUR"
		pending    = "merchant_pending:acme:EUR"
		payable    = "merchant_payable:acme:EUR"
		provider   = "psp_receivable:stripe:EUR"
		revenue    = "fee_revenue:payonce:EUR"
		clearing   = "refund_clearing:acme:EUR"
	)
	captured := map[string]int64{provider: 1000, payable: -970, revenue: -30}
	sent := map[string]int64{provider: 1000, payable: -570, clearing: -400, revenue: -30}
	partly := map[string]int64{provider: 600, payable: -570, revenue: -30}
	for group, want := range map[string]map[string]int64{
		absent:           {},
		anyOpen:          {receivable: 1000, pending: -1000},
		anyFailed:        {},
		anyUnrefunded:    captured,
		refundPending:    sent,
		refundAttempted:  sent,
		refundOfAll:      {provider: 1000, payable: 30, clearing: -1000, revenue: -30},
		partlyRefunded:   partly,
		fullyRefunded:    {payable: 30, revenue: -30},
		refundFailed:     captured,
		refundRefused:    captured,
		refundReversed:   captured,
		refundsOfAllKind: {provider: 900, payable: -470, clearing: -400, revenue: -30},
		refundTold:       partly,
		refundSilent:     partly,
		toldLate:         partly,
	} {
		for _, state := range members(group) {
			if diff := cmp.Diff(want, balances(history(state))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", state, diff)
			}
		}
	}
}
