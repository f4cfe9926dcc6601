package domain_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// The golden postings: a charge of 1000 of which 30 are the fee, a refund of
// 400. They are stored books, so this table only grows.
func TestPostings(t *testing.T) {
	t.Parallel()
	const (
		receivable = "customer_receivable:acme:EUR"
		pending    = "merchant_pending:acme:EUR"
		payable    = "merchant_payable:acme:EUR"
		provider   = "psp_receivable:stripe:EUR"
		revenue    = "fee_revenue:payonce:EUR"
		clearing   = "refund_clearing:acme:EUR"
	)
	after := map[string]string{
		"charge.requested.v1": "absent",
		"refund.requested.v1": "succeeded", "refund.attempt_failed.v1": "refund pending", "refund.succeeded.v1": "refund pending",
		"refund.failed.v1": "refund pending", "refund.reversed.v1": "refunded in part",
		"charge.dispute_opened.v1": "succeeded", "charge.dispute_withdrawn.v2": "disputed", "charge.dispute_reinstated.v2": "dispute won",
		"charge.dispute_updated.v1": "disputed", "charge.dispute_closed.v2": "dispute withdrawn",
	}
	for name, e := range stored() {
		want := map[string][]domain.Posting{
			"charge.requested.v1": {
				{Debit: receivable, Credit: pending, Amount: 1000, Currency: "EUR"},
			},
			"payment.captured.v1": {
				{Debit: provider, Credit: receivable, Amount: 1000, Currency: "EUR"},
				{Debit: pending, Credit: payable, Amount: 970, Currency: "EUR"},
				{Debit: pending, Credit: revenue, Amount: 30, Currency: "EUR"},
			},
			"charge.failed.v1": {
				{Debit: pending, Credit: receivable, Amount: 1000, Currency: "EUR"},
			},
			"refund.requested.v1": {{Debit: payable, Credit: clearing, Amount: 400, Currency: "EUR"}},
			"refund.succeeded.v1": {{Debit: clearing, Credit: provider, Amount: 400, Currency: "EUR"}},
			"refund.failed.v1":    {{Debit: clearing, Credit: payable, Amount: 400, Currency: "EUR"}},
			"refund.reversed.v1":  {{Debit: provider, Credit: payable, Amount: 400, Currency: "EUR"}},
			"refund.observed.v1":  {{Debit: payable, Credit: provider, Amount: 400, Currency: "EUR"}},
			"charge.dispute_withdrawn.v2": {
				{Debit: payable, Credit: provider, Amount: 1000, Currency: "EUR"},
				{Debit: payable, Credit: provider, Amount: 15, Currency: "EUR"},
			},
			"charge.dispute_reinstated.v2": {
				{Debit: provider, Credit: payable, Amount: 1000, Currency: "EUR"},
				{Debit: provider, Credit: payable, Amount: 15, Currency: "EUR"},
			},
		}[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := in("started")
			if state, ok := after[name]; ok {
				before = in(state)
			}
			if diff := cmp.Diff(want, domain.Postings(before, e)); diff != "" {
				t.Errorf("postings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPostings_ofDisputes: money that came back is the merchant's, however the dispute ended.
func TestPostings_ofDisputes(t *testing.T) {
	t.Parallel()
	want := map[string]int64{"psp_receivable:stripe:EUR": 1000, "merchant_payable:acme:EUR": -970, "fee_revenue:payonce:EUR": -30}
	if diff := cmp.Diff(want, balances(history("dispute lost and reinstated"))); diff != "" {
		t.Errorf("balances (-want +got):\n%s", diff)
	}
}

func TestPostings_leaveOutLegsOfZero(t *testing.T) {
	t.Parallel()
	for fee, credit := range map[int64]string{0: "merchant_payable:acme:EUR", 1000: "fee_revenue:payonce:EUR"} {
		want := []domain.Posting{
			{Debit: "psp_receivable:stripe:EUR", Credit: "customer_receivable:acme:EUR", Amount: 1000, Currency: "EUR"},
			{Debit: "merchant_pending:acme:EUR", Credit: credit, Amount: 1000, Currency: "EUR"},
		}
		got := domain.Postings(in("started"), with(taken(), func(e *domain.PaymentCaptured) { e.Fee = fee }))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("postings of a capture with the fee %d (-want +got):\n%s", fee, diff)
		}
	}
}

func TestFeeSchedule(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		schedule domain.FeeSchedule
		amount   int64
		want     int64
	}{
		{"three percent of ten euros", fees(300, 0), 1000, 30},
		{"less than half a cent is nothing", fees(300, 0), 16, 0},
		{"half a cent is a cent", fees(100, 0), 50, 1},
		{"a hundredth less than half a cent is nothing", fees(1, 0), 4999, 0},
		{"exactly half of the smallest unit is rounded up", fees(1, 0), 5000, 1},
		{"the fixed part is added after rounding", fees(100, 25), 50, 26},
		{"the fee is never above the amount", fees(300, 500), 100, 100},
		{"all of it may be the fee", fees(10_000, 0), 1, 1},
		{"no schedule is no fee", domain.FeeSchedule{}, 1000, 0},
		{"a fixed part below zero lowers the fee", fees(300, -10), 1000, 20},
		{"the fee is never below nothing", fees(0, -10), 1000, 0},
		{"the largest amount does not overflow", fees(10_000, 0), domain.MaxAmount, domain.MaxAmount},
		{"the largest fixed part does not overflow", fees(10_000, math.MaxInt64), domain.MaxAmount, domain.MaxAmount},
		{"the smallest fixed part does not overflow", fees(0, math.MinInt64), 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := test.schedule.Of(test.amount); got != test.want {
				t.Errorf("the fee is %d, want %d", got, test.want)
			}
		})
	}
}

func fees(basisPoints, fixed int64) domain.FeeSchedule {
	return domain.FeeSchedule{BasisPoints: basisPoints, Fixed: fixed}
}
