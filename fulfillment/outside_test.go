package fulfillment_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
)

// foreign is the provider's refund rp_9 of 600, which payonce did not ask for.
func foreign(status string, pairs ...any) json.RawMessage {
	return refundOf(status, append([]any{"id", "rp_9", "metadata", map[string]any{}}, pairs...)...)
}

// disputeOf is the provider's dispute du_1 of all of ch_1, with what it moved in the account's
// currency, each time with a fee of 15.
func disputeOf(status, currency string, moved ...int64) json.RawMessage {
	pairs := []int64{}
	for _, amount := range moved {
		fee := int64(15)
		if amount > 0 {
			fee = -15
		}
		pairs = append(pairs, amount, fee)
	}
	return movedBy(status, currency, pairs...)
}

// movedBy is the dispute with pairs of an amount and a fee.
func movedBy(status, currency string, pairs ...int64) json.RawMessage {
	transactions := []any{}
	for pair := range slices.Chunk(pairs, 2) {
		transactions = append(transactions, map[string]any{
			"id": fmt.Sprintf("txn_%d", len(transactions)+1), "object": "balance_transaction",
			"amount": pair[0], "fee": pair[1], "currency": currency,
		})
	}
	return json.RawMessage(object(map[string]any{
		"id": "du_1", "object": "dispute", "status": status, "reason": "fraudulent", "amount": 1999, "currency": "eur",
		"payment_intent": "pi_1", "balance_transactions": transactions,
	}))
}

// expectPosted checks the balances of the accounts that disputes and refunds move.
func (f *fixture) expectPosted(want string) {
	f.t.Helper()
	f.expectText(want, `
select string_agg(format('%s %s', account, balance), ', ' order by account)
  from (select split_part(account, ':', 1) as account, sum(amount) as balance
          from (select debit as account, amount from ledger_postings union all select credit, -amount from ledger_postings) legs
         where split_part(account, ':', 1) in ('psp_receivable', 'merchant_payable', 'refund_clearing')
         group by 1
        having sum(amount) <> 0) balances`)
}

func TestObservedRefund(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	withEvent := func(name string) func(*fixture) {
		return func(f *fixture) { f.capture(order()); f.event("evt_1", name) }
	}
	const observed = " refund.observed"
	unrecorded := func(name string, refund json.RawMessage) scenario {
		return scenario{begin: withEvent(name), script: script{"refunds": {lists(refund)}}, want: back("", "", "done"), calls: "refunds"}
	}
	dead := func(refund json.RawMessage) scenario {
		return scenario{begin: withEvent("charge.refunded"), script: script{"refunds": {lists(refund)}}, ends: "dead", want: back("", "", "dead"), calls: "refunds"}
	}
	runAll(t, map[string]scenario{
		"it counts against what is left, once": {
			begin: withEvent("charge.refunded"), script: script{"refunds": {lists(foreign("succeeded")), lists(foreign("succeeded"))}},
			want: back(observed, "refund.observed", "done"), calls: "refunds",
			check: func(f *fixture) {
				f.event("evt_2", "refund.created")
				f.expectEnd(f.deliver(), "done")
				f.expect(back(observed, "refund.observed", "done done"), "refunds")
				if c := f.load("ch_1").Charge; c.Refundable() != 1399 || c.AmountRefunded() != 600 {
					t.Errorf("%d left, %d refunded", c.Refundable(), c.AmountRefunded())
				}
				f.expectPosted("merchant_payable -1309, psp_receivable 1399")
			},
		},
		"a refund of ours that it leaves nothing for fails": {
			begin: isRefunding, script: script{
				"refunds": {lists(foreign("succeeded", "amount", 1999))},
				"refund":  {refuses(400, "invalid_request_error", "charge_already_refunded")},
			},
			want: back(asked+" refund.failed", "refund.failed", "done"), calls: "refunds refund refunds",
		},
		"one that fails after it succeeded is reversed": {
			begin:  withEvent("refund.failed"),
			script: script{"refunds": {lists(foreign("succeeded")), lists(foreign("failed"))}},
			want:   back(observed, "refund.observed", "done"), calls: "refunds",
			check: func(f *fixture) {
				f.event("evt_2", "refund.failed")
				f.expectEnd(f.deliver(), "done")
				f.expect(back(observed+" refund.reversed", "refund.observed refund.reversed", "done done"), "refunds")
				f.expectPosted("merchant_payable -1909, psp_receivable 1999")
			},
		},
		"one of ours that the stream has lost has our id": {
			begin: withEvent("charge.refunded"), script: script{"refunds": {lists(refundOf("succeeded"))}},
			want: back(observed, "refund.observed", "done"), calls: "refunds",
			check: func(f *fixture) {
				f.expectRecorded(0, domain.RefundObserved{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600, Notify: true})
			},
		},
		"one that is pending is not recorded yet":            unrecorded("refund.created", foreign("pending")),
		"one that failed is not recorded":                    unrecorded("refund.failed", foreign("failed")),
		"a refund above the capture becomes a dead letter":   dead(foreign("succeeded", "amount", 2000)),
		"a refund in another currency becomes a dead letter": dead(foreign("succeeded", "currency", "usd")),
	})
}

func TestDispute(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	const (
		opened     = " charge.dispute_opened"
		withdrawn  = opened + " charge.dispute_withdrawn"
		reinstated = withdrawn + " charge.dispute_reinstated"
		closed     = " charge.dispute_closed"
		whole      = "merchant_payable -1909, psp_receivable 1999"
		taken      = "merchant_payable 105, psp_receivable -15"
	)
	// seen is a charge about which an event says that there is something new.
	seen := func(dispute json.RawMessage, history, posted string) scenario {
		return scenario{
			begin:  func(f *fixture) { f.capture(order()); f.event("evt_1", "charge.dispute.created") },
			script: script{"disputes": {lists(dispute)}}, want: back(history, history[1:], "done"), calls: "disputes",
			check: func(f *fixture) { f.expectPosted(posted) },
		}
	}
	interrupted := seen(disputeOf("needs_response", "eur", -1999), withdrawn, taken)
	interrupted.script = script{"disputes": {cut, lists(disputeOf("needs_response", "eur", -1999))}}
	interrupted.ends, interrupted.calls = "waits done", "disputes disputes"

	late := seen(disputeOf("won", "eur", -1999, 1999), reinstated+closed, whole)
	late.script = script{"disputes": {lists(disputeOf("won", "eur", -1999, 1999)), lists(disputeOf("won", "eur", -1999, 1999))}}
	late.check = func(f *fixture) {
		f.event("evt_2", "charge.dispute.created")
		f.expectEnd(f.deliver(), "done")
		f.expect(back(reinstated+closed, (reinstated + closed)[1:], "done done"), "disputes")
		f.expectPosted(whole)
	}
	// later is a charge whose dispute is seen twice: as it was, and as it became.
	later := func(before, after json.RawMessage, history, more, posted string) scenario {
		s := seen(before, history, "")
		s.script = script{"disputes": {lists(before), lists(after)}}
		s.check = func(f *fixture) {
			f.event("evt_2", "charge.dispute.updated")
			f.expectEnd(f.deliver(), "done")
			f.expect(back(history+more, (history + more)[1:], "done done"), "disputes")
			f.expectPosted(posted)
		}
		return s
	}
	const updated = " charge.dispute_updated"
	runAll(t, map[string]scenario{
		"an inquiry moves nothing":                             seen(disputeOf("warning_needs_response", "eur"), opened, whole),
		"an inquiry that ends moves nothing":                   seen(disputeOf("warning_closed", "eur"), opened+closed, whole),
		"what is withdrawn is the merchant's, and its fee":     seen(disputeOf("needs_response", "eur", -1999), withdrawn, taken),
		"a lost one moves no more":                             seen(disputeOf("lost", "eur", -1999), withdrawn+closed, taken),
		"a won one that is not reinstated yet moves no more":   seen(disputeOf("won", "eur", -1999), withdrawn+closed, taken),
		"a won one is given back, however late its events are": late,
		"an account in another currency says no fee":           seen(disputeOf("needs_response", "usd", -2150), withdrawn, "merchant_payable 90"),
		"a read that was interrupted is repeated":              interrupted,
		"each of many movements counts once": seen(movedBy("needs_response", "eur", -1999, 15, -30, 0, 5, 0),
			withdrawn+" charge.dispute_withdrawn charge.dispute_reinstated", "merchant_payable 130, psp_receivable -40"),
		"each has its share of an account in another currency": seen(movedBy("lost", "usd", -2150, 0, 20, 0), reinstated+closed, "merchant_payable 71, psp_receivable 19"),
		"a lost one is won": later(disputeOf("lost", "eur", -1999), disputeOf("won", "eur", -1999, 1999),
			withdrawn+closed, " charge.dispute_reinstated"+closed, whole),
		"a won one is lost": later(disputeOf("won", "eur", -1999, 1999), disputeOf("lost", "eur", -1999, 1999, -1999),
			reinstated+closed, " charge.dispute_withdrawn"+closed, taken),
		"an inquiry that ended becomes a dispute": later(disputeOf("warning_closed", "eur"), disputeOf("needs_response", "eur", -1999),
			opened+closed, " charge.dispute_withdrawn"+updated, taken),
		"a closed one goes on": later(disputeOf("lost", "eur", -1999), disputeOf("under_review", "eur", -1999), withdrawn+closed, updated, taken),
		"a dispute in another currency becomes a dead letter": {
			begin:  func(f *fixture) { f.capture(order()); f.event("evt_1", "charge.dispute.created") },
			script: script{"disputes": {lists(json.RawMessage(object(map[string]any{"id": "du_1", "object": "dispute", "amount": 1, "currency": "usd"})))}},
			ends:   "dead", want: back("", "", "dead"), calls: "disputes",
		},
	})
}

// TestDispute_isReadAgainAfterALostRace: a worker whose list is older than what another one has
// recorded does not open the dispute again.
func TestDispute_isReadAgainAfterALostRace(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.append(f.capture(order()),
		domain.DisputeOpened{DisputeID: "du_1", Provider: domain.Provider, Amount: 1999, Reason: "fraudulent"},
		domain.DisputeClosed{DisputeID: "du_1", Status: "lost"})
	f.provider.on("disputes",
		f.rival(lists(disputeOf("under_review", "eur")), domain.DisputeClosed{DisputeID: "du_1", Status: "won"}),
		lists(disputeOf("won", "eur")))
	f.event("evt_1", "charge.dispute.updated")
	f.expectEnd(f.deliver(), "done")
	f.expect(back(" charge.dispute_opened charge.dispute_closed charge.dispute_closed", "", "done"), "disputes disputes")
}
