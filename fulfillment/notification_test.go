package fulfillment_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// TestNotify sends the webhook about each kind of event, and compares it with what the contract and the feed have.
func TestNotify(t *testing.T) {
	t.Parallel()
	why := domain.Failure{Code: domain.CardDeclined, Message: "no money", DeclineCode: "insufficient_funds"}
	charge := func(status, payment string, failure any) map[string]any {
		return map[string]any{
			"id": "ch_1", "order_id": "order 1", "amount": 1999.0, "amount_refunded": 0.0, "currency": "EUR",
			"status": status, "failure": failure, "metadata": map[string]any{"basket": "7"}, "created_at": nine.Format(time.RFC3339Nano),
			"steps": []any{
				map[string]any{"name": "inventory", "status": "skipped"},
				map[string]any{"name": "payment", "status": payment},
				map[string]any{"name": "notification", "status": "pending"},
			},
		}
	}
	refund := func(status string) map[string]any {
		return map[string]any{"id": "re_1", "charge_id": "ch_1", "amount": 600.0, "currency": "EUR", "status": status}
	}
	reversed := domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600}
	for name, test := range map[string]struct {
		after string
		more  []domain.Event
		kind  string
		data  map[string]any
	}{
		"about the outcome": {"captured", nil, "charge.succeeded", charge("succeeded", "done", nil)},
		"about a failure": {
			"bare",
			[]domain.Event{domain.PaymentDeclined{Failure: why}, domain.ChargeFailed{Failure: why}},
			"charge.failed",
			charge("failed", "failed", map[string]any{"code": "card_declined", "message": "no money", "decline_code": "insufficient_funds"}),
		},
		"about a refund that succeeded":                 {"refunded", nil, "refund.succeeded", refund("succeeded")},
		"about a refund that failed":                    {"refused", nil, "refund.failed", refund("failed")},
		"about a refund that failed after it succeeded": {"refunded", []domain.Event{reversed}, "refund.failed", refund("failed")},
	} {
		t.Run("the merchant is notified once "+name, func(t *testing.T) {
			t.Parallel()
			n := newNotified(t, slices.Concat(histories[test.after], test.more)...)
			about := n.stream.Head()
			if got := n.notify(about.Version); got != "merchant.notified" {
				t.Fatalf("it records %s", got)
			}
			want := map[string]any{"id": about.ID.String(), "type": test.kind, "created_at": nine.Format(time.RFC3339Nano), "data": test.data}
			var got map[string]any
			if err := json.Unmarshal([]byte(n.shop.received[0].Body), &got); err != nil || n.shop.received[0].ID != about.ID.String() {
				t.Fatalf("the webhook has the id %s: %v", n.shop.received[0].ID, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the webhook (-want +got):\n%s", diff)
			}
			notified := domain.MerchantNotified{EventID: about.ID.String(), Type: test.kind, Version: about.Version}
			if diff := cmp.Diff(domain.Event(notified), n.stream.Head().Event); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
			if got := n.notify(about.Version); got != "" || len(n.shop.received) != 1 {
				t.Errorf("the same message again records %q and sends %d webhooks", got, len(n.shop.received)-1)
			}
		})
	}
}

// TestNotify_again is about one outcome that is delivered more than once, or not recorded at first.
func TestNotify_again(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		meanwhile func(*notified) // while the first webhook is in flight
		answer    int
		want      string // of all deliveries
		received  int
	}{
		"a redelivery says the same, whatever has happened since": {
			func(n *notified) { n.append(requested(), refundedBy()) }, http.StatusInternalServerError,
			"refund.requested refund.succeeded waits | merchant.notified", 2,
		},
		"a lost race for the version is no reason to tell again": {
			func(n *notified) { n.append(requested()) }, http.StatusOK, "refund.requested merchant.notified", 1,
		},
		"the loser of the race to record records nothing": {
			func(n *notified) {
				n.append(domain.MerchantNotified{EventID: n.stream.At(4).ID.String(), Type: "charge.succeeded", Version: 4})
			}, http.StatusOK, "merchant.notified", 1,
		},
		"after the message was taken over nothing is recorded": {func(n *notified) { n.lost = true }, http.StatusOK, "lost | merchant.notified", 2},
		"if others are first at every try it waits": {
			func(n *notified) { n.losing = "merchant.notified.v1" }, http.StatusOK, "waits", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotified(t, histories["captured"]...)
			n.shop.answer(func(w http.ResponseWriter) { test.meanwhile(n); status(test.answer)(w) })
			var all []string
			for range strings.Count(test.want, "|") + 1 {
				all = append(all, n.notify(4))
			}
			if got := strings.Join(all, " | "); got != test.want || len(n.shop.received) != test.received {
				t.Errorf("it records %s and sends %d webhooks, want %s and %d", all, len(n.shop.received), test.want, test.received)
			}
			for _, same := range n.shop.received {
				if same != n.shop.received[0] || same.ID != n.stream.At(4).ID.String() {
					t.Errorf("the shop received %+v", same)
				}
			}
		})
	}
}

func TestNotify_refusals(t *testing.T) {
	t.Parallel()
	silent := bare()
	silent.Notify = false
	for name, test := range map[string]struct {
		begin func(*notified)
		about ledger.Envelope
		end   string
		sent  int
	}{
		"a shop that refuses is tried again":                  {func(n *notified) { n.shop.answer(status(500)) }, ledger.Envelope{Version: 4}, "waits", 1},
		"a webhook without an endpoint becomes a dead letter": {func(n *notified) { n.endpoint.URL = "" }, ledger.Envelope{Version: 4}, "dead", 0},
		"a merchant that wanted no webhook gets none": {
			func(n *notified) {
				n.stream = newMemory(t, n.shop.services, silent, histories["captured"][1], captured(), domain.ChargeSucceeded{}).stream
			},
			ledger.Envelope{Version: 4},
			"done", 0,
		},
		"a message whose event cannot be read yet waits":      {func(*notified) {}, ledger.Envelope{Version: 9}, "waits", 0},
		"a message that names no event becomes a dead letter": {func(*notified) {}, ledger.Envelope{}, "dead", 0},
		"a message that names no webhook event becomes a dead letter": {
			func(*notified) {}, ledger.Envelope{Version: 3}, "dead", 0,
		},
		"a message of a type that is no webhook event's waits for a newer worker": {
			func(*notified) {}, ledger.Envelope{Type: "payment.captured.v1", Version: 3}, "waits", 0,
		},
		"a webhook to a forbidden target becomes a dead letter": {func(n *notified) {
			n.on = fulfillment.NewOn(n, newShop(t).services, nil) // loopback is not allowed
		}, ledger.Envelope{Version: 4}, "dead", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotified(t, histories["captured"]...)
			test.begin(n)
			messageType := "charge.succeeded.v1"
			if test.about.Type != "" {
				messageType = test.about.Type
			}
			if test.about.Version > 0 {
				test.about.ID, test.about.ChargeID = "e", "ch_1"
			}
			from := len(n.stream.Events)
			end := endOf(n.receive(fulfillment.NotificationReceiver, messageType, test.about))
			if end != test.end || len(n.stream.Events) != from || len(n.shop.received) != test.sent {
				t.Errorf("it ends as %s after %d webhooks, want %s after %d", end, len(n.shop.received), test.end, test.sent)
			}
		})
	}
}

// TestNotify_retryAfter: a shop that asks for time gets it.
func TestNotify_retryAfter(t *testing.T) {
	t.Parallel()
	n := newNotified(t, histories["captured"]...)
	n.shop.answer(status(http.StatusServiceUnavailable, "Retry-After", "86400"))
	e := n.stream.At(4)
	err := n.receive(fulfillment.NotificationReceiver, e.Type, ledger.Envelope{ID: "e", ChargeID: "ch_1", Version: 4})
	if wait, ok := errors.AsType[*inbox.WaitError](err); !ok || wait.AtLeast < 23*time.Hour {
		t.Errorf("the handler returned %v, want a wait for a day", err)
	}
}
