package sandbox_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

func TestBooks(t *testing.T) {
	t.Parallel()

	t.Run("they show what happened under the callers' references", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{ShopSecret: shopSecret})
		empty := map[string]any{
			"intents": []any{}, "captures": []any{}, "refunds": []any{}, "disputes": []any{}, "notifications": []any{},
			"requests": 0.0, "duplicates_suppressed": 0.0,
		}
		testrun.Same(t, "books before anything happened", empty, f.control(http.MethodGet, "/books", "").object)
		id := f.captured("pm_card_visa")
		for range 3 {
			f.post("/v1/refunds", "r", "payment_intent", id, "amount", "400", "metadata[refund_id]", "re_1")
		}
		open := f.post("/v1/payment_intents", "", "amount", "500", "currency", "USD").text("id")
		for range 2 {
			f.must(f.notify("msg_1", notice("ch_1")))
		}
		want := map[string]any{
			"intents": []any{
				map[string]any{"reference": "ch_1", "charge_reference": "", "id": id, "status": "succeeded", "amount": 1000.0, "currency": "eur", "captures": 1.0},
				map[string]any{"reference": "", "charge_reference": "", "id": open, "status": "requires_payment_method", "amount": 500.0, "currency": "usd", "captures": 0.0},
			},
			"captures": []any{map[string]any{"reference": "ch_1", "charge_reference": "", "payment_intent": id, "amount": 1000.0, "currency": "eur"}},
			"refunds":  []any{map[string]any{"reference": "re_1", "payment_intent": id, "amount": 400.0}},
			"disputes": []any{},
			"notifications": []any{map[string]any{
				"webhook_id": "msg_1", "reference": "ch_1", "type": "charge.succeeded", "deliveries": 2.0, "effects": 1.0,
			}},
			"requests": 6.0, "duplicates_suppressed": 2.0,
		}
		testrun.Same(t, "books", want, f.control(http.MethodGet, "/books", "").object)
	})

	t.Run("a processing intent that is due is settled in them", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{ProcessingTime: time.Hour})
		f.post("/v1/payment_intents/"+f.create("pm_card_processing")+"/confirm", "")
		if b := f.books(); b.Intents[0].Status != "processing" || len(b.Captures) != 0 {
			t.Errorf("early: %+v", b)
		}
		f.pass(time.Hour)
		if b := f.books(); b.Intents[0].Status != "succeeded" || len(b.Captures) != 1 {
			t.Errorf("due: %+v", b)
		}
	})
}
