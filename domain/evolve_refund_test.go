package domain_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// A refund is what its events say, wherever others stand between them.
func TestRefund(t *testing.T) {
	t.Parallel()
	pending := domain.Refund{
		ID: "re_1", Amount: 400, Reason: "a broken mug", Notify: true, Status: domain.RefundStatusPending,
		RequestVersion: 6, AttemptVersion: 6,
	}
	attempted, paid, failed := pending, pending, pending
	attempted.AttemptVersion = 7
	paid.Status, paid.ProviderRefund, paid.OutcomeVersion = domain.RefundStatusSucceeded, "rp_1", 7
	failed.Status, failed.ProviderRefund, failed.OutcomeVersion = domain.RefundStatusFailed, "rp_1", 7
	refused, reversed, silent, late := failed, paid, paid, paid
	refused.ProviderRefund = ""
	reversed.Status, reversed.ReversalVersion = domain.RefundStatusFailed, 8
	silent.Notify = false
	late.RequestVersion, late.AttemptVersion, late.OutcomeVersion = 7, 7, 8
	for state, want := range map[string]domain.Refund{
		refundPending: pending, refundAttempted: attempted, partlyRefunded: paid, fullyRefunded: paid,
		refundFailed: failed, refundRefused: refused, refundReversed: reversed, refundsOfAllKind: pending,
		refundTold: late, refundSilent: silent, toldLate: paid,
	} {
		got, found := in(state).Refund("re_1")
		if diff := cmp.Diff(want, got); diff != "" || !found {
			t.Errorf("%s: found %v (-want +got):\n%s", state, found, diff)
		}
	}
	for _, id := range []string{"re_9", ""} {
		if r, found := in(refundsOfAllKind).Refund(id); found || r != (domain.Refund{}) {
			t.Errorf("refund %q is %+v", id, r)
		}
	}
}

// What has gone back, what may, and what the charge is called for it.
func TestRefunds(t *testing.T) {
	t.Parallel()
	rows := []struct {
		state          string
		status         domain.Status
		refunded, left int64
		pending        []string
		untold         []int
	}{
		{succeeded, domain.Succeeded, 0, 1000, nil, []int{5}},
		{refundPending, domain.Succeeded, 0, 600, []string{"re_1"}, []int{5}},
		{refundAttempted, domain.Succeeded, 0, 600, []string{"re_1"}, []int{5}},
		{refundOfAll, domain.Succeeded, 0, 0, []string{"re_1"}, []int{5}},
		{partlyRefunded, domain.PartiallyRefunded, 400, 600, nil, []int{5, 7}},
		{fullyRefunded, domain.Refunded, 1000, 0, nil, []int{5, 7, 9}},
		{refundFailed, domain.Succeeded, 0, 1000, nil, []int{5, 7}},
		{refundRefused, domain.Succeeded, 0, 1000, nil, []int{5, 7}},
		{refundReversed, domain.Succeeded, 0, 1000, nil, []int{5, 7, 8}},
		{refundsOfAllKind, domain.PartiallyRefunded, 100, 500, []string{"re_1"}, []int{5, 8, 10}},
		{refundTold, domain.PartiallyRefunded, 400, 600, nil, nil},
		{refundSilent, domain.PartiallyRefunded, 400, 600, nil, []int{5}},
		{toldLate, domain.PartiallyRefunded, 400, 600, nil, []int{7}},
	}
	for _, test := range rows {
		c := in(test.state)
		if c.Status != test.status || c.Refunded() != test.refunded || c.Left() != test.left {
			t.Errorf("%s: %s, %d refunded, %d left", test.state, c.Status, c.Refunded(), c.Left())
		}
		var pending []string
		for _, r := range c.PendingRefunds() {
			pending = append(pending, r.ID)
		}
		if !slices.Equal(pending, test.pending) || !slices.Equal(c.Unnotified, test.untold) {
			t.Errorf("%s: pending are %v, untold %v", test.state, pending, c.Unnotified)
		}
	}
	for _, state := range append(members(anyOpen), members(anyFailed)...) {
		if c := in(state); c.Left() != 0 || c.Refunded() != 0 || c.PendingRefunds() != nil {
			t.Errorf("%s: %d left, %d refunded", state, c.Left(), c.Refunded())
		}
	}
}
