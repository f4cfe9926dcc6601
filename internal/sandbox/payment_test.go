package sandbox_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/sandbox"
)

func TestCreateIntent(t *testing.T) {
	t.Parallel()
	w := start(t, sandbox.Options{})

	t.Run("an intent without a payment method requires one", func(t *testing.T) {
		t.Parallel()
		w.post("/v1/payment_intents", "", "amount", "1000", "currency", "EUR", "metadata[charge_id]", "ch_9", "description", "two mugs").
			want(t, http.StatusOK, map[string]any{
				"object": "payment_intent", "status": "requires_payment_method", "amount": 1000.0, "amount_received": 0.0,
				"currency": "eur", "metadata": map[string]any{"charge_id": "ch_9"}, "description": "two mugs",
				"payment_method": nil, "last_payment_error": nil, "latest_charge": nil, "livemode": false,
			})
	})

	t.Run("an intent with a payment method requires confirmation", func(t *testing.T) {
		t.Parallel()
		a := w.post("/v1/payment_intents", "", "amount", "1", "currency", "jpy", "payment_method", "pm_card_visa",
			"automatic_payment_methods[enabled]", "true", "automatic_payment_methods[allow_redirects]", "never")
		a.want(t, http.StatusOK, map[string]any{
			"status": "requires_confirmation", "payment_method": "pm_card_visa", "latest_charge": nil, "last_payment_error": nil,
		})
		if id := a.text("id"); !strings.HasPrefix(id, "pi_") || w.get("/v1/payment_intents/"+id).raw != a.raw {
			t.Errorf("the intent retrieved is not the intent created: %s", a.raw)
		}
		if a.header.Get("Request-Id") == "" || a.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("headers: %v", a.header)
		}
	})

	t.Run("an intent can be confirmed as it is created", func(t *testing.T) {
		t.Parallel()
		w.post("/v1/payment_intents", "", "amount", "5", "currency", "eur", "payment_method", "pm_card_visa", "confirm", "true").
			want(t, http.StatusOK, map[string]any{"status": "succeeded", "amount_received": 5.0})
		w.post("/v1/payment_intents", "", "amount", "5", "currency", "eur", "payment_method", "pm_card_chargeDeclined", "confirm", "true").
			want(t, http.StatusPaymentRequired, map[string]any{"error.payment_intent.status": "requires_payment_method"})
	})
}

func TestConfirmIntent(t *testing.T) {
	t.Parallel()
	w := start(t, sandbox.Options{ProcessingTime: 300 * time.Millisecond})

	for _, method := range []string{"pm_card_visa", "pm_card_refundFail"} {
		t.Run(method+" is captured", func(t *testing.T) {
			t.Parallel()
			id := w.create(method)
			a := w.post("/v1/payment_intents/"+id+"/confirm", "", "off_session", "true", "error_on_requires_action", "true")
			a.want(t, http.StatusOK, map[string]any{
				"id": id, "status": "succeeded", "amount_received": 1000.0, "last_payment_error": nil, "payment_method": method,
			})
			if !strings.HasPrefix(a.text("latest_charge"), "ch_") {
				t.Errorf("latest_charge is %v", a.at("latest_charge"))
			}
		})
	}

	for method, codes := range map[string][2]string{
		"pm_card_chargeDeclined":                  {"card_declined", "generic_decline"},
		"pm_card_chargeDeclinedInsufficientFunds": {"card_declined", "insufficient_funds"},
		"pm_card_authenticationRequired":          {"authentication_required", "authentication_required"},
	} {
		t.Run(method+" is declined and shows why", func(t *testing.T) {
			t.Parallel()
			id := w.create(method)
			a := w.post("/v1/payment_intents/"+id+"/confirm", "", "error_on_requires_action", "true")
			a.want(t, http.StatusPaymentRequired, map[string]any{
				"error.type": "card_error", "error.code": codes[0], "error.decline_code": codes[1],
				"error.payment_intent.id": id, "error.payment_intent.status": "requires_payment_method",
				"error.payment_intent.last_payment_error.code": codes[0],
			})
			now := w.get("/v1/payment_intents/" + id)
			now.want(t, http.StatusOK, map[string]any{
				"status": "requires_payment_method", "payment_method": nil, "last_payment_error.type": "card_error",
				"last_payment_error.decline_code": codes[1], "latest_charge": a.at("error.charge"),
			})
			if !strings.HasPrefix(now.text("latest_charge"), "ch_") {
				t.Errorf("latest_charge is %v", now.at("latest_charge"))
			}
		})
	}

	t.Run("an attended customer is asked to authenticate", func(t *testing.T) {
		t.Parallel()
		id := w.create("pm_card_authenticationRequired")
		w.post("/v1/payment_intents/"+id+"/confirm", "").want(t, http.StatusOK, map[string]any{
			"status": "requires_action", "next_action.type": "use_stripe_sdk", "last_payment_error": nil,
		})
	})

	t.Run("a declined intent can be attempted again with another payment method only", func(t *testing.T) {
		t.Parallel()
		id := w.create("pm_card_chargeDeclined")
		w.post("/v1/payment_intents/"+id+"/confirm", "").want(t, http.StatusPaymentRequired, nil)
		w.post("/v1/payment_intents/"+id+"/confirm", "").want(t, http.StatusBadRequest, map[string]any{
			"error.type": "invalid_request_error", "error.code": "payment_intent_unexpected_state",
			"error.payment_intent.status": "requires_payment_method",
		})
		w.post("/v1/payment_intents/"+id+"/confirm", "", "payment_method", "pm_card_visa").want(t, http.StatusOK, map[string]any{
			"status": "succeeded", "last_payment_error": nil, "payment_method": "pm_card_visa",
		})
	})

	t.Run("a processing intent succeeds after a while", func(t *testing.T) {
		t.Parallel()
		id := w.create("pm_card_processing")
		w.post("/v1/payment_intents/"+id+"/confirm", "").want(t, http.StatusOK, map[string]any{
			"status": "processing", "amount_received": 0.0, "last_payment_error": nil,
		})
		await.True(t, "the intent succeeds", func() bool {
			return w.get("/v1/payment_intents/"+id).text("status") == "succeeded"
		})
	})

	t.Run("a final intent is not confirmed again", func(t *testing.T) {
		t.Parallel()
		succeeded, canceled := w.captured("pm_card_visa"), w.create("pm_card_visa")
		w.post("/v1/payment_intents/"+canceled+"/cancel", "").want(t, http.StatusOK, nil)
		for id, status := range map[string]string{succeeded: "succeeded", canceled: "canceled"} {
			w.post("/v1/payment_intents/"+id+"/confirm", "", "payment_method", "pm_card_visa").want(t, http.StatusBadRequest, map[string]any{
				"error.code": "payment_intent_unexpected_state", "error.payment_intent.status": status,
			})
		}
	})
}

func TestCancelIntent(t *testing.T) {
	t.Parallel()
	w := start(t, sandbox.Options{ProcessingTime: time.Hour})

	t.Run("an intent that captured nothing is sealed", func(t *testing.T) {
		t.Parallel()
		declined, action := w.create("pm_card_chargeDeclined"), w.create("pm_card_authenticationRequired")
		w.post("/v1/payment_intents/"+declined+"/confirm", "")
		w.post("/v1/payment_intents/"+action+"/confirm", "")
		for _, id := range []string{w.create(""), w.create("pm_card_visa"), declined, action} {
			a := w.post("/v1/payment_intents/"+id+"/cancel", "", "cancellation_reason", "abandoned")
			a.want(t, http.StatusOK, map[string]any{"status": "canceled", "cancellation_reason": "abandoned"})
			if a.at("canceled_at") == nil || w.get("/v1/payment_intents/"+id).raw != a.raw {
				t.Errorf("the canceled intent reads otherwise: %s", a.raw)
			}
		}
	})

	t.Run("a succeeded, canceled or processing intent is shown instead", func(t *testing.T) {
		t.Parallel()
		canceled, processing := w.create(""), w.create("pm_card_processing")
		w.post("/v1/payment_intents/"+canceled+"/cancel", "")
		w.post("/v1/payment_intents/"+processing+"/confirm", "")
		for id, status := range map[string]string{w.captured("pm_card_visa"): "succeeded", canceled: "canceled", processing: "processing"} {
			w.post("/v1/payment_intents/"+id+"/cancel", "").want(t, http.StatusBadRequest, map[string]any{
				"error.type": "invalid_request_error", "error.code": "payment_intent_unexpected_state",
				"error.payment_intent.id": id, "error.payment_intent.status": status,
			})
		}
	})
}

func TestConcurrentConfirmations(t *testing.T) {
	t.Parallel()

	t.Run("under different keys they capture once", func(t *testing.T) {
		t.Parallel()
		w := start(t, sandbox.Options{})
		id := w.create("pm_card_visa")
		counts := statuses(w.concurrently(20, func(int) (answered, error) { return w.tryPost("/v1/payment_intents/"+id+"/confirm", "") }))
		if b := w.books(); counts[200] != 1 || counts[400] != 19 || len(b.Captures) != 1 || b.Intents[0].Captures != 1 {
			t.Errorf("answers %v, books %+v", counts, b)
		}
	})

	t.Run("a confirmation and a cancellation have one winner", func(t *testing.T) {
		t.Parallel()
		w := start(t, sandbox.Options{})
		for range 10 {
			id := w.create("pm_card_visa")
			counts := statuses(w.concurrently(2, func(i int) (answered, error) {
				return w.tryPost("/v1/payment_intents/"+id+"/"+[]string{"confirm", "cancel"}[i], "")
			}))
			if counts[200] != 1 || counts[400] != 1 {
				t.Errorf("answers %v", counts)
			}
		}
		for _, i := range w.books().Intents {
			if (i.Status == "succeeded") != (i.Captures == 1) {
				t.Errorf("%s with %d captures", i.Status, i.Captures)
			}
		}
	})
}
