package fulfillment_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

// shop is a merchant's endpoint.
type shop struct {
	answer   func() error // to the next webhook, which it accepts where this is nil
	received []webhook.Message
}

// Deliver receives a webhook, and answers.
func (s *shop) Deliver(_ context.Context, m webhook.Message) error {
	s.received = append(s.received, m)
	answer := s.answer
	if s.answer = nil; answer == nil {
		return nil
	}
	return answer()
}

// refuses has the shop answer the next webhook with an error.
func (s *shop) refuses(err error) { s.answer = func() error { return err } }

// repeats reports whether every webhook was the first one again.
func (s *shop) repeats() bool {
	return !slices.ContainsFunc(s.received, func(m webhook.Message) bool { return !cmp.Equal(m, s.received[0]) })
}

var errShop = &webhook.DeliveryError{StatusCode: http.StatusInternalServerError}

// notified is a memory whose merchant has a shop.
type notified struct {
	*memory

	shop *shop
}

func newNotified(t *testing.T, history ...domain.Event) *notified {
	t.Helper()
	s := &shop{}
	n := &notified{newMemory(t, fulfillment.Services{Webhooks: s}, history...), s}
	n.endpoint = merchants.Endpoint{URL: "https://shop.example/hooks", Secrets: []string{"whsec_MDEyMzQ1"}}
	return n
}

// notify delivers the message about the event at a version, and returns what is recorded and how it ends.
func (n *notified) notify(version int) string {
	n.t.Helper()
	e, from := n.stream.At(version), len(n.stream.Events)
	err := n.receive(fulfillment.NotificationReceiver, e.Type, ledger.Envelope{ID: e.ID.String(), Type: e.Type, ChargeID: "ch_1", Version: version})
	return n.said(from, err)
}

func (m *memory) receive(receiver, messageType string, about ledger.Envelope) error {
	return handlerOf(m.on, receiver)(m.t.Context(), &inbox.Delivery{
		Message: inbox.Message{ID: "m_1", Type: messageType, OrderingKey: "ch_1", Payload: about.Encode()},
	})
}

// TestNotify sends the webhook about each kind of event. Its bytes never change: a merchant may have stored them.
func TestNotify(t *testing.T) {
	t.Parallel()
	const charge = `{"id":"ch_1","order_id":"order 1","amount":1999,"amount_refunded":0,"currency":"EUR","status":"%s",` +
		`"steps":[{"name":"inventory","status":"skipped"},{"name":"payment","status":"%s"},{"name":"notification","status":"pending"}],` +
		`"failure":%s,"metadata":{"basket":"7"},"created_at":"2026-11-23T09:00:00Z"}`
	const refund = `{"id":"re_1","charge_id":"ch_1","amount":600,"currency":"EUR","status":"%s"}`
	why := domain.Failure{Code: domain.CardDeclined, Message: "no money", DeclineCode: "insufficient_funds"}
	reversed := domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600}
	for name, test := range map[string]struct {
		after      string
		more       []domain.Event
		kind, data string
	}{
		"about the outcome": {"captured", nil, "charge.succeeded", fmt.Sprintf(charge, "succeeded", "done", "null")},
		"about a failure": {
			"bare",
			[]domain.Event{domain.PaymentDeclined{Failure: why}, domain.ChargeFailed{Failure: why}},
			"charge.failed",
			fmt.Sprintf(charge, "failed", "failed", `{"code":"card_declined","message":"no money","decline_code":"insufficient_funds"}`),
		},
		"about a refund that succeeded":                 {"refunded", nil, "refund.succeeded", fmt.Sprintf(refund, "succeeded")},
		"about a refund that failed":                    {"refused", nil, "refund.failed", fmt.Sprintf(refund, "failed")},
		"about a refund that failed after it succeeded": {"refunded", []domain.Event{reversed}, "refund.failed", fmt.Sprintf(refund, "failed")},
	} {
		t.Run("the merchant is notified once "+name, func(t *testing.T) {
			t.Parallel()
			n := newNotified(t, slices.Concat(histories[test.after], test.more)...)
			about := n.stream.Head()
			if got := n.notify(about.Version); got != "merchant.notified" {
				t.Fatalf("it records %s", got)
			}
			id := about.ID.String()
			body := fmt.Sprintf(`{"id":"%s","type":"%s","created_at":"2026-11-23T09:00:00Z","data":%s}`, id, test.kind, test.data)
			testrun.Same(t, "the webhooks", []webhook.Message{{URL: n.endpoint.URL, Secrets: n.endpoint.Secrets, ID: id, Body: []byte(body)}}, n.shop.received)
			notified := domain.MerchantNotified{EventID: id, Type: test.kind, Version: about.Version}
			testrun.Same(t, "recorded", domain.Event(notified), n.stream.Head().Event)
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
		answer    error
		want      string // of all deliveries
		received  int
	}{
		"a redelivery says the same, whatever has happened since": {
			func(n *notified) { n.append(requested(), refundedBy()) }, errShop,
			"refund.requested refund.succeeded waits | merchant.notified", 2,
		},
		"a lost race for the version is no reason to tell again": {
			func(n *notified) { n.append(requested()) }, nil, "refund.requested merchant.notified", 1,
		},
		"the loser of the race to record records nothing": {
			func(n *notified) {
				n.append(domain.MerchantNotified{EventID: n.stream.At(4).ID.String(), Type: "charge.succeeded", Version: 4})
			}, nil, "merchant.notified", 1,
		},
		"after the message was taken over nothing is recorded": {func(n *notified) { n.lost = true }, nil, "lost | merchant.notified", 2},
		"if others are first at every try it waits": {
			func(n *notified) { n.losing = true }, nil, "waits", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotified(t, histories["captured"]...)
			n.shop.answer = func() error { test.meanwhile(n); return test.answer }
			var all []string
			for range strings.Count(test.want, "|") + 1 {
				all = append(all, n.notify(4))
			}
			if got := strings.Join(all, " | "); got != test.want || len(n.shop.received) != test.received {
				t.Errorf("it records %s and sends %d webhooks, want %s and %d", all, len(n.shop.received), test.want, test.received)
			}
			if !n.shop.repeats() || n.shop.received[0].ID != n.stream.At(4).ID.String() {
				t.Errorf("the shop received %+v", n.shop.received)
			}
		})
	}
}

func TestNotify_refusals(t *testing.T) {
	t.Parallel()
	const outcome = "charge.succeeded.v1"
	for name, test := range map[string]struct {
		answer  error // of the shop
		message string
		version int
		end     string
		sent    int
		begin   func(*notified)
	}{
		"a shop that refuses is tried again": {errShop, outcome, 4, "waits", 1, nil},
		"a shop that asks for time gets it": {
			&webhook.DeliveryError{StatusCode: http.StatusServiceUnavailable, RetryAfter: 24 * time.Hour}, outcome, 4, "waits a day", 1, nil,
		},
		"a webhook to a forbidden target becomes a dead letter":       {&webhook.TargetError{}, outcome, 4, "dead", 1, nil},
		"a message that names no event becomes a dead letter":         {nil, outcome, 0, "dead", 0, nil},
		"a message that names no webhook event becomes a dead letter": {nil, outcome, 3, "dead", 0, nil},
		"a message of a type that is no webhook event's waits for a newer worker": {
			nil, "payment.captured.v1", 3, "waits", 0, nil,
		},
		"a webhook without an endpoint becomes a dead letter": {nil, outcome, 4, "dead", 0, func(n *notified) { n.endpoint.URL = "" }},
		"a merchant that wanted no webhook gets none": {nil, outcome, 4, "done", 0, func(n *notified) {
			silent := bare()
			silent.Notify = false
			n.stream = ledger.New("ch_1")
			n.append(silent, histories["captured"][1], captured(), domain.ChargeSucceeded{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNotified(t, histories["captured"]...)
			n.shop.refuses(test.answer)
			if test.begin != nil {
				test.begin(n)
			}
			from := len(n.stream.Events)
			err := n.receive(fulfillment.NotificationReceiver, test.message, ledger.Envelope{ID: "e", ChargeID: "ch_1", Version: test.version})
			end := endOf(err)
			if wait, ok := errors.AsType[*inbox.WaitError](err); ok && wait.AtLeast >= 23*time.Hour {
				end += " a day"
			}
			if end != test.end || len(n.stream.Events) != from || len(n.shop.received) != test.sent {
				t.Errorf("it ends as %s after %d webhooks, want %s after %d", end, len(n.shop.received), test.end, test.sent)
			}
		})
	}
}

// TestResend: an operator's message delivers a webhook once more, and records it if it was never received.
// TestScripts/resend in cmd/payonce has the message, its receiver and the operator's name.
func TestResend(t *testing.T) {
	t.Parallel()
	for receiver, want := range map[string]string{
		fulfillment.ResendReceiver:       "merchant.notified | waits | ",
		fulfillment.NotificationReceiver: "waits | merchant.notified | ",
	} {
		t.Run(receiver, func(t *testing.T) {
			t.Parallel()
			n := newNotified(t, histories["captured"]...)
			e, got := n.stream.Head(), ""
			if receiver == fulfillment.ResendReceiver {
				got = n.notify(4) + " | "
			}
			n.shop.refuses(errShop)
			for range strings.Count(want, "|") - strings.Count(got, "|") {
				from := len(n.stream.Events)
				err := n.receive(receiver, fulfillment.TypeResend, ledger.Envelope{ID: e.ID.String(), Type: e.Type, ChargeID: "ch_1", Version: 4})
				got += n.said(from, err) + " | "
			}
			if received := n.shop.received; got != want || len(received) < 2 || !n.shop.repeats() {
				t.Errorf("it records %s, want %s; the shop received %+v", got, want, received)
			}
		})
	}
}
