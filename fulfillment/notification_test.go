package fulfillment_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// refundedBy is the success of re_1.
func refundedBy() domain.RefundSucceeded {
	return domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600}
}

// hasBody checks the only webhook, and that the same message again sends none.
func hasBody(kind string, data func(*shop) map[string]any) func(*shop) {
	return func(s *shop) {
		s.t.Helper()
		want := map[string]any{
			"id": s.outcome.ID.String(), "type": kind, "created_at": s.outcome.RecordedAt.UTC().Format(time.RFC3339Nano), "data": data(s),
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(s.received[0].Body), &got); err != nil {
			s.t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			s.t.Errorf("the webhook (-want +got):\n%s", diff)
		}
		s.expectRecorded(0, domain.MerchantNotified{EventID: s.outcome.ID.String(), Type: kind, Version: s.outcome.Version})
		s.put(fulfillment.NotificationReceiver, s.load("ch_1"), s.outcome.Version, "again")
		s.expectEnd(s.deliver(), "done")
		if len(s.received) != 1 {
			s.t.Errorf("the shop received %d webhooks, want 1", len(s.received))
		}
	}
}

func TestNotify(t *testing.T) {
	t.Parallel()
	why := domain.Failure{Code: domain.CardDeclined, Message: "no money", DeclineCode: "insufficient_funds"}
	charge := func(status string, failure any) func(*shop) map[string]any {
		return func(s *shop) map[string]any {
			payment := map[string]any{"succeeded": "done", "failed": "failed"}[status]
			return map[string]any{
				"id": "ch_1", "order_id": "order 1", "amount": 1999.0, "amount_refunded": 0.0, "currency": "EUR",
				"status": status, "failure": failure, "metadata": map[string]any{"basket": "7"},
				"steps": []any{
					map[string]any{"name": "inventory", "status": "skipped"},
					map[string]any{"name": "payment", "status": payment},
					map[string]any{"name": "notification", "status": "pending"},
				},
				"created_at": s.load("ch_1").At(1).OccurredAt.UTC().Format(time.RFC3339Nano),
			}
		}
	}
	runNotices(t, map[string]notice{
		"the merchant is notified once about the outcome": {
			begin:    func(s *shop) { s.succeed(order()) },
			received: 1, events: paid + notified, check: hasBody("charge.succeeded", charge("succeeded", nil)),
		},
		"the merchant is notified about a failure": {
			begin: func(s *shop) {
				first := order()
				first.Items = nil
				s.announce(s.append(ledger.New("ch_1"), first, domain.PaymentDeclined{Failure: why}, domain.ChargeFailed{Failure: why}))
			},
			received: 1, events: "charge.requested payment.declined charge.failed" + notified,
			check: hasBody("charge.failed", charge("failed", map[string]any{"code": "card_declined", "message": "no money", "decline_code": "insufficient_funds"})),
		},
		"a redelivery says the same, whatever has happened since": {
			begin: func(s *shop) {
				s.succeed(order())
				s.answer(s.fixture.rival(says(http.StatusInternalServerError, ""), domain.InventoryReleased{})) // it shows in the view
			},
			ends: "waits done", received: 2, events: paid + " inventory.released" + notified,
		},
		"a lost race for the version is no reason to tell again": {
			begin:    func(s *shop) { s.succeed(order()); s.rival(domain.InventoryReleased{}) },
			received: 1, events: paid + " inventory.released" + notified,
		},
		"the loser of the race to record records nothing": {
			begin: func(s *shop) {
				s.succeed(order())
				s.rival(domain.MerchantNotified{EventID: s.outcome.ID.String(), Type: "charge.succeeded", Version: s.outcome.Version})
			},
			received: 1, events: paid + notified,
		},
		"after the message was taken over nothing is recorded": {
			begin: func(s *shop) { s.succeed(order()); s.answer(s.takeOver(says(http.StatusOK, ""))) },
			ends:  "lost done", received: 2, events: paid + notified,
		},
	})
}

func TestNotify_refund(t *testing.T) {
	t.Parallel()
	notices := map[string]notice{
		"a success is sent as it was, also after it was reversed": {
			begin: func(s *shop) {
				stream := s.requestRefund(true, refundedBy())
				s.announce(stream)
				s.append(stream, domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600})
			},
			received: 1, events: paid + refunded + " refund.reversed" + notified,
			check: func(s *shop) {
				if body := s.received[0].Body; !strings.Contains(body, `"refund.succeeded"`) || !strings.Contains(body, `"status":"succeeded"`) {
					s.t.Errorf("the shop received %s, want the success", body)
				}
			},
		},
		"a refund about which the merchant wanted no webhook sends none": {
			begin: func(s *shop) { s.announce(s.requestRefund(false, refundedBy())) }, events: paid + refunded,
		},
		"a message that names no webhook event becomes a dead letter": {
			begin: func(s *shop) {
				s.announce(s.requestRefund(true))
				s.exec(`update inbox set type = 'refund.succeeded.v1'`)
			},
			ends: "dead", events: paid + asked, message: "dead",
		},
		"a message of a type that is no webhook event's waits for a newer worker": {
			begin: func(s *shop) { s.announce(s.requestRefund(true)) }, ends: "waits", events: paid + asked, message: "pending",
		},
	}
	for name, tc := range map[string]struct {
		outcomes     []domain.Event
		kind, status string
		events       string
	}{
		"a refund that succeeded": {[]domain.Event{refundedBy()}, "refund.succeeded", "succeeded", refunded},
		"a refund that failed": {
			[]domain.Event{domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused, Message: "refused"}},
			"refund.failed", "failed", asked + " refund.failed",
		},
		"a refund that failed after it succeeded": {
			[]domain.Event{refundedBy(), domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600}},
			"refund.failed", "failed", refunded + " refund.reversed",
		},
	} {
		notices["the merchant is notified once about "+name] = notice{
			begin:    func(s *shop) { s.announce(s.requestRefund(true, tc.outcomes...)) },
			received: 1, events: paid + tc.events + notified,
			check: hasBody(tc.kind, func(*shop) map[string]any {
				return map[string]any{"id": "re_1", "charge_id": "ch_1", "amount": 600.0, "currency": "EUR", "status": tc.status}
			}),
		}
	}
	runNotices(t, notices)
}

func TestNotify_order(t *testing.T) {
	t.Parallel()
	s := newShop(t, loopback())
	s.succeed(order())
	first := s.outcome.ID.String()
	s.announce(s.append(s.load("ch_1"), domain.RefundRequested{RefundID: "re_1", Amount: 600, Notify: true}, refundedBy()))
	s.answer(says(http.StatusInternalServerError, "")) // the first waits, and with it the second
	for _, end := range []string{"waits", "done", "done"} {
		s.expectEnd(s.deliver(), end)
	}
	var ids []string
	for _, got := range s.received {
		ids = append(ids, got.ID)
	}
	testrun.Same(t, "the shop received", []string{first, first, s.outcome.ID.String()}, ids)
}

func TestNotify_refusals(t *testing.T) {
	t.Parallel()
	renumbered := func(version string) func(*shop) {
		return func(s *shop) {
			s.succeed(order())
			s.exec(`update inbox set payload = convert_to(replace(convert_from(payload, 'UTF8'), '"version":4', $1), 'UTF8')`, `"version":`+version)
		}
	}
	unnotified := order()
	unnotified.Notify = false
	runNotices(t, map[string]notice{
		"a shop that asks for time gets it, and no attempt is counted": {
			begin: func(s *shop) {
				s.succeed(order())
				s.answer(says(http.StatusServiceUnavailable, "", "Retry-After", "86400"))
			},
			ends: "waits", received: 1, events: paid, message: "pending",
			check: func(s *shop) {
				s.expectText("0 1 t", `select format('%s %s %s', attempts, waits, due_at > clock_timestamp() + interval '23 hours') from inbox`)
			},
		},
		"a webhook without an endpoint becomes a dead letter": {
			begin: func(s *shop) { s.succeed(order()); s.removeEndpoint() }, ends: "dead", events: paid, message: "dead",
		},
		"a merchant that wanted no webhook gets none":         {begin: func(s *shop) { s.succeed(unnotified) }, events: paid},
		"a message whose event cannot be read yet waits":      {begin: renumbered("9"), ends: "waits", events: paid, message: "pending"},
		"a message that names no event becomes a dead letter": {begin: renumbered("0"), ends: "dead", events: paid, message: "dead"},
	})

	t.Run("a webhook to a forbidden target becomes a dead letter", func(t *testing.T) {
		t.Parallel()
		s := newShop(t) // loopback is not allowed
		s.succeed(order())
		s.expectEnd(s.deliver(), "dead")
		s.expectReceived(0, paid, "dead")
		s.expectText("true", `select (last_error like '%target refused%')::text from inbox`)
	})
}
