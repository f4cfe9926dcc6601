package fulfillment_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/ledger"
)

// quiet is ch_1, whose own outcome its merchant was not to be told of.
func (s *shop) quiet() ledger.Stream {
	s.Helper()
	first := order()
	first.Items, first.Notify = nil, false
	return s.append(ledger.New("ch_1"), first,
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_1", Amount: 1999, Currency: "EUR", Fee: 90},
		domain.ChargeSucceeded{},
		domain.RefundRequested{RefundID: "re_1", Amount: 600, Notify: true})
}

func TestNotify_refund(t *testing.T) {
	t.Parallel()
	gave := domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600}
	for name, tc := range map[string]struct {
		outcomes []domain.Event
		kind     string
		status   string
		events   string
	}{
		"a refund that succeeded": {[]domain.Event{gave}, "refund.succeeded", "succeeded", refunded},
		"a refund that failed": {
			[]domain.Event{domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused, Message: "refused"}},
			"refund.failed", "failed", asked + " refund.failed",
		},
		"a refund that failed after it succeeded": {
			[]domain.Event{gave, domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600}},
			"refund.failed", "failed", refunded + " refund.reversed",
		},
	} {
		t.Run("the merchant is told once about "+name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, loopback())
			s.tell(s.append(s.quiet(), tc.outcomes...))
			s.expectKind(s.deliver(), "done")
			s.expectTold(1, paid+tc.events+" merchant.notified", "done")
			want := map[string]any{
				"id": s.outcome.ID.String(), "type": tc.kind,
				"created_at": s.outcome.RecordedAt.UTC().Format(time.RFC3339Nano),
				"data": map[string]any{
					"id": "re_1", "charge_id": "ch_1", "amount": 600.0, "currency": "EUR", "status": tc.status,
				},
			}
			var got map[string]any
			if err := json.Unmarshal([]byte(s.got[0].Body), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the webhook (-want +got):\n%s", diff)
			}
			recorded := domain.MerchantNotified{EventID: s.outcome.ID.String(), Type: tc.kind, Version: s.outcome.Version}
			if diff := cmp.Diff(recorded, s.load().Head().Event); diff != "" {
				t.Errorf("recorded (-want +got):\n%s", diff)
			}
			s.put(fulfillment.NotificationReceiver, s.load(), s.outcome.Version, "again")
			s.expectKind(s.deliver(), "done")
			s.expectTold(1, paid+tc.events+" merchant.notified", "done done")
		})
	}

	t.Run("a success is told as it was, also after it was reversed", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		stream := s.tell(s.append(s.quiet(), gave))
		s.append(stream, domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600})
		s.expectKind(s.deliver(), "done")
		var got struct {
			Type string
			Data domain.RefundView
		}
		if err := json.Unmarshal([]byte(s.got[0].Body), &got); err != nil {
			t.Fatal(err)
		}
		if got.Type != "refund.succeeded" || got.Data.Status != domain.RefundStatusSucceeded {
			t.Errorf("the shop was told %+v, want the success", got)
		}
	})

	t.Run("a refund of which the merchant wanted no word is not told of", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		first := order()
		first.Items, first.Notify = nil, false
		s.tell(s.append(ledger.New("ch_1"), first,
			domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"},
			domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_1", Amount: 1999, Currency: "EUR", Fee: 90},
			domain.ChargeSucceeded{}, domain.RefundRequested{RefundID: "re_1", Amount: 600}, gave))
		s.expectKind(s.deliver(), "done")
		s.expectTold(0, paid+refunded, "done")
	})

	t.Run("the charge and its refunds are told in their order", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		stream := s.succeed(order())
		succeeded := s.outcome.ID.String()
		stream = s.append(stream, domain.RefundRequested{RefundID: "re_1", Amount: 600, Notify: true}, gave)
		s.tell(stream)
		s.answer(says(500, "")) // the first waits, and with it the second
		s.expectKind(s.deliver(), "waits")
		for range 2 {
			s.expectKind(s.deliver(), "done")
		}
		var ids []string
		for _, told := range s.got {
			ids = append(ids, told.ID)
		}
		if diff := cmp.Diff([]string{succeeded, succeeded, s.outcome.ID.String()}, ids); diff != "" {
			t.Errorf("the shop was told of (-want +got):\n%s", diff)
		}
		if events := s.see().Events; events != paid+refunded+" merchant.notified merchant.notified" {
			t.Errorf("recorded are %q", events)
		}
	})

	t.Run("a message that names no outcome is parked before anybody is told", func(t *testing.T) {
		t.Parallel()
		s := newShop(t, loopback())
		s.tell(s.quiet())
		s.expectKind(s.deliver(), "parked")
		s.expectTold(0, paid+asked, "dead")
	})
}
