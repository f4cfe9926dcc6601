package fulfillment_test

import (
	"encoding/json"
	"net/http"
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
	transactions := []any{}
	for _, amount := range moved {
		fee := 15
		if amount > 0 {
			fee = -15
		}
		transactions = append(transactions, map[string]any{
			"id": "txn_1", "object": "balance_transaction", "amount": amount, "fee": fee, "currency": currency,
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
         where split_part(account, ':', 1) in ('psp_receivable', 'disputes', 'merchant_payable', 'refund_clearing')
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
				if c := f.load("ch_1").Charge; c.Left() != 1399 || c.Refunded() != 600 {
					t.Errorf("%d left, %d refunded", c.Left(), c.Refunded())
				}
				f.expectPosted("merchant_payable -1309, psp_receivable 1399")
			},
		},
		"a refund of ours that it leaves nothing for fails": {
			begin: isRefunding, script: script{
				"refunds": {lists(foreign("succeeded", "amount", 1999))},
				"refund":  {refuses(400, "invalid_request_error", "charge_already_refunded")},
			},
			want: back(asked+" refund.failed"+observed, "refund.failed refund.observed", "done"), calls: "refunds refund refunds",
			check: func(f *fixture) { f.expectPosted("merchant_payable 90") },
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
		opened     = " charge.disputed"
		withdrawn  = opened + " charge.dispute_withdrawn"
		reinstated = withdrawn + " charge.dispute_reinstated"
		closed     = " charge.dispute_closed"
		whole      = "merchant_payable -1909, psp_receivable 1999"
		withheld   = "disputes 1999, merchant_payable -1894, psp_receivable -15"
	)
	// seen is a charge about which an event says that there is something new.
	seen := func(dispute json.RawMessage, history, posted string) scenario {
		return scenario{
			begin:  func(f *fixture) { f.capture(order()); f.event("evt_1", "charge.dispute.created") },
			script: script{"disputes": {lists(dispute)}}, want: back(history, history[1:], "done"), calls: "disputes",
			check: func(f *fixture) { f.expectPosted(posted) },
		}
	}
	interrupted := seen(disputeOf("needs_response", "eur", -1999), withdrawn, withheld)
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
	runAll(t, map[string]scenario{
		"an inquiry moves nothing":                             seen(disputeOf("warning_needs_response", "eur"), opened, whole),
		"an inquiry that ends moves nothing":                   seen(disputeOf("warning_closed", "eur"), opened+closed, whole),
		"what is withdrawn is withheld, and its fee is due":    seen(disputeOf("needs_response", "eur", -1999), withdrawn, withheld),
		"a lost one is the merchant's":                         seen(disputeOf("lost", "eur", -1999), withdrawn+closed, "merchant_payable 105, psp_receivable -15"),
		"a won one that is not reinstated yet stays withheld":  seen(disputeOf("won", "eur", -1999), withdrawn+closed, withheld),
		"a won one is given back, however late its events are": late,
		"an account in another currency says no amount":        seen(disputeOf("needs_response", "usd", -2150), withdrawn, "disputes 1999, merchant_payable -1909"),
		"a read that was interrupted is repeated":              interrupted,
		"a dispute in another currency becomes a dead letter": {
			begin:  func(f *fixture) { f.capture(order()); f.event("evt_1", "charge.dispute.created") },
			script: script{"disputes": {lists(json.RawMessage(object(map[string]any{"id": "du_1", "object": "dispute", "amount": 1, "currency": "usd"})))}},
			ends:   "dead", want: back("", "", "dead"), calls: "disputes",
		},
		"it is seen although its event waits behind a refund": {
			begin: func(f *fixture) { f.request(f.capture(order()), "re_1", 600) },
			script: script{
				"refunds":  {lists(refundOf("pending")), lists(refundOf("pending"))},
				"disputes": {lists(disputeOf("needs_response", "eur", -1999))},
			},
			ends: "waits waits", want: back(asked+withdrawn, withdrawn[1:], "pending"), calls: "refunds refunds disputes",
		},
	})
}

// TestThinEvent: an event that names only an object of the provider's is passed to the
// charge of the object, once.
func TestThinEvent(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	thin := func(name, object string) func(*fixture) {
		return func(f *fixture) {
			f.capture(order())
			f.event("evt_1", name)
			f.exec(`update inbox set ordering_key = 'stripe:' || $1`, object)
		}
	}
	scenarios := map[string]scenario{
		"of an object that the provider does not have is done": {
			begin: thin("charge.dispute.created", "du_2"), script: script{"disputes/id": {refuses(404, "invalid_request_error", "resource_missing")}},
			want: back("", "", "done"), calls: "disputes/id",
		},
		"of another shop's object is done": {
			begin: thin("refund.updated", "rp_1"), script: script{"refunds/id": {gives("succeeded", "payment_intent", "pi_of_another_shop")}},
			want: back("", "", "done"), calls: "refunds/id",
		},
		"waits for the provider": {
			begin: thin("refund.updated", "rp_1"), script: script{"refunds/id": {cut}}, ends: "waits", want: back("", "", "pending"), calls: "refunds/id",
		},
	}
	for name, of := range map[string]struct {
		object, op string
		found      http.HandlerFunc
		list       string
		listed     json.RawMessage
		history    string
	}{
		"charge.dispute.created": {"du_1", "disputes/id", says(200, string(disputeOf("lost", "eur"))), "disputes", disputeOf("warning_closed", "eur"), " charge.disputed charge.dispute_closed"},
		"refund.updated":         {"rp_9", "refunds/id", says(200, string(foreign("pending"))), "refunds", foreign("succeeded"), " refund.observed"},
		"charge.refunded":        {"py_1", "charges/id", says(200, `{"id":"py_1","object":"charge","payment_intent":"pi_1"}`), "refunds", foreign("succeeded"), " refund.observed"},
	} {
		scenarios["of "+name+" wakes the charge, whose list is believed"] = scenario{
			begin: thin(name, of.object), script: script{of.op: {of.found}, of.list: {lists(of.listed)}},
			ends: "done done", want: back(of.history, of.history[1:], "done done"), calls: of.op + " " + of.list,
		}
	}
	runAll(t, scenarios)
}
