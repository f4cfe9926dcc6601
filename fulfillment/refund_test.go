package fulfillment_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/testdb"
)

func TestRefund(t *testing.T) {
	t.Parallel()

	t.Run("the list is asked before the first send too", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.refunding()
		w.provider.on("refund", gives("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "done"), "refunds refund")
		if diff := cmp.Diff([]string{s.Head().ID.String()}, w.provider.keys("refund")); diff != "" {
			t.Errorf("the key is not the id of the request (-want +got):\n%s", diff)
		}
		want := domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600}
		if diff := cmp.Diff(want, w.load().Head().Event); diff != "" {
			t.Errorf("recorded (-want +got):\n%s", diff)
		}
		books := w.text(`
select string_agg(format('%s→%s %s', split_part(debit, ':', 1), split_part(credit, ':', 1), amount), ', ' order by version)
  from ledger_postings
 where version > 4`)
		if books != "merchant_payable→refund_clearing 600, refund_clearing→psp_receivable 600" {
			t.Errorf("the books are %s", books)
		}
	})

	t.Run("what an older message of the charge has sent is found by a new one", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.request(w.capture(), "re_1", 600)
		w.provider.on("refunds", lists(refundOf("succeeded")))
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "done"), "refunds")
	})

	t.Run("a message of the charge that is not the refund's own carries it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.append(w.capture(), domain.RefundRequested{RefundID: "re_1", Amount: 600})
		w.put(fulfillment.ChargeReceiver, s, 1, "another")
		w.provider.on("refunds", lists())
		w.provider.on("refund", gives("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "done"), "refunds refund")
	})

	t.Run("a message of another refund carries it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.append(w.capture(), domain.RefundRequested{RefundID: "re_1", Amount: 600})
		w.request(s, "re_2", 100)
		w.provider.on("refunds", lists(refundOf("succeeded")), lists(refundOf("succeeded")))
		w.provider.on("refund", gives("succeeded", "id", "rp_2", "amount", 100, "metadata", map[string]any{"refund_id": "re_2"}))
		w.expectKind(w.deliver(), "done")
		w.expect(back(asked+asked+" refund.succeeded refund.succeeded", "refund.succeeded refund.succeeded", "done"), "refunds refunds refund")
	})

	t.Run("the message of a finished refund again asks nobody", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.refunding()
		w.provider.on("refund", gives("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.put(fulfillment.ChargeReceiver, s, 5, "again")
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "done done"), "refunds refund")
	})
}

// TestRefund_state is about what the provider says that became of the refund, be
// it in the answer to a send or in its list.
func TestRefund_state(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	failed := asked + " refund.failed"
	for name, tc := range map[string]struct {
		status string
		pairs  []any
		kind   string
		want   sight
	}{
		"succeeded is a success":                   {"succeeded", nil, "done", back(refunded, "refund.succeeded", "done")},
		"failed is a failure":                      {"failed", nil, "done", back(failed, "refund.failed", "done")},
		"canceled is a failure":                    {"canceled", nil, "done", back(failed, "refund.failed", "done")},
		"pending is looked at again later":         {"pending", nil, "waits", back(asked, "", "pending")},
		"an action of the customer is waited for":  {"requires_action", nil, "waits", back(asked, "", "pending")},
		"a state that nobody knows is parked":      {"reticent", nil, "parked", back(asked, "", "dead")},
		"no state at all is parked":                {"", nil, "parked", back(asked, "", "dead")},
		"a wrong amount is parked":                 {"succeeded", []any{"amount", 601}, "parked", back(asked, "", "dead")},
		"a wrong currency is parked":               {"succeeded", []any{"currency", "usd"}, "parked", back(asked, "", "dead")},
		"another payment is parked":                {"succeeded", []any{"payment_intent", "pi_2"}, "parked", back(asked, "", "dead")},
		"no payment is parked":                     {"succeeded", []any{"payment_intent", nil}, "parked", back(asked, "", "dead")},
		"an id that cannot be stored is no answer": {"succeeded", []any{"id", "rp\x00"}, "waits", back(asked, "", "pending")},
		"a wrong amount is parked while it waits":  {"pending", []any{"amount", 601}, "parked", back(asked, "", "dead")},
	} {
		t.Run("answered "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.refunding()
			w.provider.on("refund", gives(tc.status, tc.pairs...))
			w.expectKind(w.deliver(), tc.kind)
			w.expect(tc.want, "refunds refund")
		})
		t.Run("listed "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.refunding()
			w.provider.on("refund", cut)
			w.provider.on("refunds", lists(refundOf(tc.status, tc.pairs...)))
			w.expectKind(w.deliver(), "waits")
			w.expectKind(w.deliver(), tc.kind)
			w.expect(tc.want, "refunds refund refunds")
		})
	}

	t.Run("an answer about another refund is parked", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.refunding()
		w.provider.on("refund", gives("succeeded", "metadata", map[string]any{"refund_id": "re_2"}))
		w.expectKind(w.deliver(), "parked")
		w.expect(back(asked, "", "dead"), "refunds refund")
	})

	t.Run("a failure says why", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.refunding()
		w.provider.on("refund", gives("failed", "failure_reason", "expired_or_canceled_card"))
		w.expectKind(w.deliver(), "done")
		want := domain.RefundFailed{
			RefundID: "re_1", ProviderRefund: "rp_1", Code: domain.ProviderRefused,
			Message: "the refund failed at the provider: expired_or_canceled_card",
		}
		if diff := cmp.Diff(want, w.load().Head().Event); diff != "" {
			t.Errorf("recorded (-want +got):\n%s", diff)
		}
		if left := w.load().Charge.Left(); left != 1999 {
			t.Errorf("%d are left for another refund, want all", left)
		}
	})
}

// TestRefund_list is about a look before a send.
func TestRefund_list(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	of := func(reference, id, status string) json.RawMessage {
		return refundOf(status, "id", id, "metadata", map[string]any{"refund_id": reference})
	}
	for name, tc := range map[string]struct {
		listed []json.RawMessage
		calls  string
		kind   string
		want   sight
	}{
		"refunds of others are not ours": {
			[]json.RawMessage{of("re_2", "rp_2", "succeeded"), refundOf("succeeded", "id", "rp_3", "metadata", nil)},
			"refunds refund", "done", back(refunded, "refund.succeeded", "done"),
		},
		"one of ours among others is found": {
			[]json.RawMessage{of("re_2", "rp_2", "failed"), of("re_1", "rp_1", "succeeded"), of("re_3", "rp_3", "failed")},
			"refunds", "done", back(refunded, "refund.succeeded", "done"),
		},
		"two that move money are parked": {
			[]json.RawMessage{of("re_1", "rp_2", "pending"), of("re_1", "rp_1", "succeeded")},
			"refunds", "parked", back(asked, "", "dead"),
		},
		"one that moves money stands before one that failed": {
			[]json.RawMessage{of("re_1", "rp_2", "failed"), of("re_1", "rp_1", "succeeded")},
			"refunds", "done", back(refunded, "refund.succeeded", "done"),
		},
		"one that failed is final and not sent again": {
			[]json.RawMessage{of("re_1", "rp_1", "failed")},
			"refunds", "done", back(asked+" refund.failed", "refund.failed", "done"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.refunding()
			w.provider.on("refund", cut, gives("succeeded"))
			w.provider.on("refunds", lists(tc.listed...))
			w.expectKind(w.deliver(), "waits")
			w.provider.take()
			w.expectKind(w.deliver(), tc.kind)
			w.expect(tc.want, tc.calls)
		})
	}

	t.Run("the list is asked of the charge's own payment", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.refunding()
		w.provider.on("refund", gives("succeeded"))
		w.expectKind(w.deliver(), "done")
		if asked := w.provider.take()[0]; asked.intent != "pi_1" {
			t.Errorf("the refunds of %q were listed, want those of pi_1", asked.intent)
		}
	})

	for name, answer := range map[string]http.HandlerFunc{
		"a cut":          cut,
		"a 500":          breaks(),
		"a 503":          refuses(http.StatusServiceUnavailable, "api_error", ""),
		"no list":        says(http.StatusOK, `{}`),
		"half an answer": says(http.StatusOK, `{"object":"list","data":[{"id":`),
		"a list that repeats itself": lists(
			refundOf("succeeded", "id", "rp_2", "metadata", nil), refundOf("succeeded", "id", "rp_2", "metadata", nil)),
	} {
		t.Run("a look that ends in "+name+" sends and records nothing", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.refunding()
			w.provider.on("refund", cut)
			w.provider.on("refunds", answer)
			w.expectKind(w.deliver(), "waits")
			w.expectKind(w.deliver(), "waits")
			w.expect(back(asked, "", "pending"), "refunds refund refunds")
		})
	}
}

// TestRefund_refused is about sends that the provider did not carry out.
func TestRefund_refused(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]http.HandlerFunc{
		"a refund of what was refunded":   refuses(http.StatusBadRequest, "invalid_request_error", "charge_already_refunded"),
		"a refund of more than is left":   refuses(http.StatusBadRequest, "invalid_request_error", ""),
		"a refund of a disputed charge":   refuses(http.StatusBadRequest, "invalid_request_error", "charge_disputed"),
		"a refund that the card declines": refuses(http.StatusPaymentRequired, "card_error", "card_declined"),
	} {
		t.Run(name+" fails if it is not in the list", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.refunding()
			w.provider.on("refund", refusal)
			w.provider.on("refunds", lists())
			w.expectKind(w.deliver(), "done")
			w.expect(back(asked+" refund.failed", "refund.failed", "done"), "refunds refund refunds")
			want := domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused, Message: "for people"}
			if diff := cmp.Diff(want, w.load().Head().Event); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
		})
		t.Run(name+" succeeded if an earlier send is in the list", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.refunding()
			w.provider.on("refund", refusal)
			w.provider.on("refunds", lists(refundOf("succeeded")))
			w.expectKind(w.deliver(), "done")
			w.expect(back(refunded, "refund.succeeded", "done"), "refunds refund refunds")
		})
	}

	t.Run("as long as the list cannot be read nothing is believed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.refunding()
		w.provider.on("refund", refuses(http.StatusBadRequest, "invalid_request_error", "charge_already_refunded"))
		w.provider.on("refunds", cut, lists(refundOf("succeeded")))
		w.expectKind(w.deliver(), "waits")
		w.expect(back(asked, "", "pending"), "refunds refund refunds")
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "done"), "refunds")
	})
}
