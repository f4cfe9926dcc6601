package fulfillment_test

import (
	"encoding/json"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// isRefunded is a charge of which 600 went back by rp_1.
func (f *fixture) isRefunded() ledger.Stream {
	f.t.Helper()
	return f.append(f.capture(order()),
		domain.RefundRequested{RefundID: "re_1", Amount: 600, Notify: true},
		domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600})
}

func TestReversal(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	const reversed = refunded + " refund.reversed"
	withEvent := func(name string) func(*fixture) {
		return func(f *fixture) { f.isRefunded(); f.event("evt_1", name) }
	}
	scenarios := map[string]scenario{
		"it says why, and the money is the merchant's again": {
			begin: withEvent("refund.failed"), script: script{"refunds": {lists(refundOf("failed", "failure_reason", "lost_or_stolen_card"))}},
			want: back(reversed, "refund.reversed", "done"), calls: "refunds",
			check: func(f *fixture) {
				f.expectRecorded(7, domain.RefundReversed{
					RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600, Message: "the refund failed at the provider: lost_or_stolen_card",
				})
				f.expectText("psp_receivable→merchant_payable 600",
					`select format('%s→%s %s', split_part(debit, ':', 1), split_part(credit, ':', 1), amount) from ledger_postings where version = 7`)
			},
		},
		"a refund that failed here stays failed, whatever comes of it there": {
			begin: func(f *fixture) {
				f.append(f.capture(order()), domain.RefundRequested{RefundID: "re_1", Amount: 600},
					domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused, Message: "refused"})
				f.event("evt_1", "refund.updated")
			},
			script: script{"refunds": {lists(refundOf("succeeded"))}}, want: back(asked+" refund.failed", "", "done"), calls: "refunds",
		},
		"it happens once, however often the provider says so": {
			begin: withEvent("refund.failed"), script: script{"refunds": {lists(refundOf("failed")), lists(refundOf("failed"))}},
			want: back(reversed, "refund.reversed", "done"), calls: "refunds",
			check: func(f *fixture) {
				f.event("evt_2", "charge.refund.updated")
				f.expectEnd(f.deliver(), "done")
				f.expect(back(reversed, "refund.reversed", "done done"), "refunds")
			},
		},
		"a read that was interrupted is repeated": {
			begin: withEvent("refund.failed"), script: script{"refunds": {cut, lists(refundOf("failed"))}},
			ends: "waits done", want: back(reversed, "refund.reversed", "done"), calls: "refunds refunds",
		},
	}
	for name, status := range map[string]string{
		"refund.failed": "failed", "refund.updated": "canceled", "charge.refund.updated": "failed", "charge.refunded": "canceled",
	} {
		scenarios["a refund that is "+status+" after it succeeded is reversed by "+name] = scenario{
			begin: withEvent(name), script: script{"refunds": {lists(refundOf(status))}}, want: back(reversed, "refund.reversed", "done"), calls: "refunds",
		}
	}
	for name, listed := range map[string][]json.RawMessage{
		"a refund that succeeded there too":      {refundOf("succeeded")},
		"a refund that is pending there again":   {refundOf("pending")},
		"a refund that the list does not have":   {},
		"another one's failure":                  {refundOf("failed", second()...)},
		"another try of ours that failed before": {refundOf("failed", "id", "rp_0"), refundOf("succeeded")},
	} {
		scenarios[name+" is not reversed"] = scenario{
			begin: withEvent("refund.failed"), script: script{"refunds": {lists(listed...)}}, want: back(refunded, "", "done"), calls: "refunds",
		}
	}
	runAll(t, scenarios)
}
