package domain_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

func TestView(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("elsewhere", 3600))
	for _, test := range []struct {
		name, state, want string
	}{
		{
			"a requested charge is pending in all its steps", requested,
			`{"id":"ch_1","order_id":"order 1","amount":1000,"amount_refunded":0,"currency":"EUR","status":"pending",` +
				`"steps":[{"name":"inventory","status":"pending"},{"name":"payment","status":"pending"},{"name":"notification","status":"pending"}],` +
				`"failure":null,"metadata":{"basket":"7"},"created_at":"2026-03-01T12:00:00Z"}`,
		},
		{
			"without stock the payment is skipped", rejected,
			`{"id":"ch_1","order_id":"order 1","amount":1000,"amount_refunded":0,"currency":"EUR","status":"failed",` +
				`"steps":[{"name":"inventory","status":"failed"},{"name":"payment","status":"skipped"},{"name":"notification","status":"pending"}],` +
				`"failure":{"code":"out_of_stock","message":"an item of the order is out of stock"},"metadata":{"basket":"7"},"created_at":"2026-03-01T12:00:00Z"}`,
		},
		{
			"a decline shows its compensation", failedAndTold,
			`{"id":"ch_1","order_id":"order 1","amount":1000,"amount_refunded":0,"currency":"EUR","status":"failed",` +
				`"steps":[{"name":"inventory","status":"compensated"},{"name":"payment","status":"failed"},{"name":"notification","status":"done"}],` +
				`"failure":{"code":"card_declined","message":"the card was declined","decline_code":"stolen_card"},"metadata":{"basket":"7"},"created_at":"2026-03-01T12:00:00Z"}`,
		},
		{
			"without webhook the notification is skipped", succeededSilent,
			`{"id":"ch_1","order_id":"order 1","amount":1000,"amount_refunded":0,"currency":"EUR","status":"succeeded",` +
				`"steps":[{"name":"inventory","status":"done"},{"name":"payment","status":"done"},{"name":"notification","status":"skipped"}],` +
				`"failure":null,"metadata":{"basket":"7"},"created_at":"2026-03-01T12:00:00Z"}`,
		},
		{
			"a refund of a part shows", refundTold,
			`{"id":"ch_1","order_id":"order 1","amount":1000,"amount_refunded":400,"currency":"EUR","status":"partially_refunded",` +
				`"steps":[{"name":"inventory","status":"done"},{"name":"payment","status":"done"},{"name":"notification","status":"done"}],` +
				`"failure":null,"metadata":{"basket":"7"},"created_at":"2026-03-01T12:00:00Z"}`,
		},
		{
			"refunds of all are a refund", fullyRefunded,
			`{"id":"ch_1","order_id":"order 1","amount":1000,"amount_refunded":1000,"currency":"EUR","status":"refunded",` +
				`"steps":[{"name":"inventory","status":"done"},{"name":"payment","status":"done"},{"name":"notification","status":"pending"}],` +
				`"failure":null,"metadata":{"basket":"7"},"created_at":"2026-03-01T12:00:00Z"}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := json.Marshal(in(test.state).View(at))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Errorf("view (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("a charge without metadata has an empty object", func(t *testing.T) {
		t.Parallel()
		view := domain.Fold(domain.Charge{}, domain.ChargeRequested{Amount: 1}).View(at)
		if view.Metadata == nil || len(view.Metadata) != 0 {
			t.Errorf("the metadata is %#v", view.Metadata)
		}
	})
}

func TestRefundView(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, state, want string
	}{
		{"a refund on its way", refundPending, `{"id":"re_1","charge_id":"ch_1","amount":400,"currency":"EUR","status":"pending"}`},
		{"a refund that failed", refundFailed, `{"id":"re_1","charge_id":"ch_1","amount":400,"currency":"EUR","status":"failed"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := in(test.state)
			r, found := c.Refund("re_1")
			got, err := json.Marshal(c.RefundView(r))
			if err != nil || !found {
				t.Fatal(found, err)
			}
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Errorf("view (-want +got):\n%s", diff)
			}
		})
	}
}
