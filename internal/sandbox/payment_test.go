package sandbox_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/sandbox"
)

func TestCreateIntent(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	const intents = "/v1/payment_intents"
	f.post(intents, "", "amount", "1000", "currency", "EUR", "metadata[charge_id]", "ch_9", "description", "two mugs").
		want(t, http.StatusOK, map[string]any{
			"object": "payment_intent", "status": "requires_payment_method", "amount": 1000.0, "amount_received": 0.0,
			"currency": "eur", "metadata": map[string]any{"charge_id": "ch_9"}, "description": "two mugs",
			"payment_method": nil, "last_payment_error": nil, "latest_charge": nil, "livemode": false,
		})
	a := f.post(intents, "", "amount", "100", "currency", "jpy", "payment_method", "pm_card_visa",
		"automatic_payment_methods[enabled]", "true", "automatic_payment_methods[allow_redirects]", "never")
	a.want(t, http.StatusOK, map[string]any{
		"status": "requires_confirmation", "payment_method": "pm_card_visa", "latest_charge": nil, "last_payment_error": nil,
	})
	if id := a.text("id"); !strings.HasPrefix(id, "pi_") || f.get(intents+"/"+id).raw != a.raw {
		t.Errorf("the intent retrieved is not the intent created: %s", a.raw)
	}
	if a.header.Get("Request-Id") == "" || a.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("headers: %v", a.header)
	}
	f.post(intents, "", "amount", "500", "currency", "eur", "payment_method", "pm_card_visa", "confirm", "true").
		want(t, http.StatusOK, map[string]any{"status": "succeeded", "amount_received": 500.0})
	f.post(intents, "", "amount", "500", "currency", "eur", "payment_method", "pm_card_chargeDeclined", "confirm", "true").
		want(t, http.StatusPaymentRequired, map[string]any{"error.payment_intent.status": "requires_payment_method"})
}

// members are the members of an answer, by their paths.
type members = map[string]any

// step is a call about one intent and its answer.
type step struct {
	call   string // confirm, cancel, or "" for a retrieval
	pairs  []string
	status int
	want   members
}

// declined are the steps of a payment method that is declined: the answer and the intent say why.
func declined(code, declineCode string) []step {
	return []step{
		{"confirm", []string{"error_on_requires_action", "true"}, 402, members{
			"error.type": "card_error", "error.code": code, "error.decline_code": declineCode,
			"error.payment_intent.status": "requires_payment_method", "error.payment_intent.last_payment_error.code": code,
		}},
		{"", nil, 200, members{
			"status": "requires_payment_method", "payment_method": nil,
			"last_payment_error.type": "card_error", "last_payment_error.decline_code": declineCode,
		}},
	}
}

// unexpected is a call that the intent's status does not allow. The answer shows the intent.
func unexpected(call, status string, pairs ...string) step {
	return step{call, pairs, 400, members{
		"error.type": "invalid_request_error", "error.code": "payment_intent_unexpected_state", "error.payment_intent.status": status,
	}}
}

func TestIntent(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{ProcessingTime: time.Hour})
	visa := []string{"payment_method", "pm_card_visa"}
	unattended := []string{"off_session", "true", "error_on_requires_action", "true"}
	captured := members{"status": "succeeded", "amount_received": 1000.0, "last_payment_error": nil}
	canceled := step{"cancel", []string{"cancellation_reason", "abandoned"}, 200, members{"status": "canceled", "cancellation_reason": "abandoned"}}
	processing := step{"confirm", nil, 200, members{"status": "processing", "amount_received": 0.0, "last_payment_error": nil}}
	action := step{"confirm", nil, 200, members{"status": "requires_action", "next_action.type": "use_stripe_sdk", "last_payment_error": nil}}
	decline := step{"confirm", nil, 402, nil}
	for name, test := range map[string]struct {
		method string
		steps  []step
	}{
		"pm_card_visa is captured":                                  {"pm_card_visa", []step{{"confirm", unattended, 200, captured}, {"", nil, 200, captured}}},
		"pm_card_chargeDeclined is declined":                        {"pm_card_chargeDeclined", declined("card_declined", "generic_decline")},
		"pm_card_chargeDeclinedInsufficientFunds is declined":       {"pm_card_chargeDeclinedInsufficientFunds", declined("card_declined", "insufficient_funds")},
		"pm_card_authenticationRequired is declined":                {"pm_card_authenticationRequired", declined("authentication_required", "authentication_required")},
		"an attended customer is asked to authenticate":             {"pm_card_authenticationRequired", []step{action}},
		"a declined intent can be attempted with another method":    {"pm_card_chargeDeclined", []step{decline, unexpected("confirm", "requires_payment_method"), {"confirm", visa, 200, captured}}},
		"a succeeded intent is neither confirmed nor canceled":      {"pm_card_visa", []step{{"confirm", nil, 200, captured}, unexpected("confirm", "succeeded", visa...), unexpected("cancel", "succeeded")}},
		"a canceled intent is neither confirmed nor canceled again": {"", []step{canceled, unexpected("confirm", "canceled", visa...), unexpected("cancel", "canceled")}},
		"a processing intent is neither confirmed nor canceled":     {"pm_card_processing", []step{processing, unexpected("confirm", "processing"), unexpected("cancel", "processing")}},
		"an intent that was not attempted is canceled":              {"pm_card_visa", []step{canceled, {"", nil, 200, canceled.want}}},
		"a declined intent is canceled":                             {"pm_card_chargeDeclined", []step{decline, canceled}},
		"an intent that waits for the customer is canceled":         {"pm_card_authenticationRequired", []step{action, canceled}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := f.create(test.method)
			for _, s := range test.steps {
				path := "/v1/payment_intents/" + id
				if s.call == "" {
					f.get(path).want(t, s.status, s.want)
					continue
				}
				a := f.post(path+"/"+s.call, "", s.pairs...)
				a.want(t, s.status, s.want)
				if shown := a.text("id") + a.text("error.payment_intent.id"); shown != id {
					t.Errorf("%s shows %s, want %s", s.call, shown, id)
				}
				if charge := f.get(path).text("latest_charge"); s.call == "confirm" && s.status < 400 && !strings.HasPrefix(charge, "ch_") {
					t.Errorf("latest_charge is %q", charge)
				}
			}
		})
	}
}

func TestIntent_customerAuthenticates(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	for outcome, want := range map[string]map[string]any{
		"succeeded": {"status": "succeeded", "amount_received": 1000.0, "next_action": nil},
		"failed":    {"status": "requires_payment_method", "last_payment_error.code": "payment_intent_authentication_failure", "next_action": nil},
	} {
		path := "/v1/payment_intents/" + f.create("pm_card_authenticationRequired")
		a := f.post(path+"/confirm", "", "return_url", "https://shop.example/back?order=1")
		a.want(t, http.StatusOK, map[string]any{
			"status": "requires_action", "next_action.type": "redirect_to_url", "next_action.redirect_to_url.return_url": "https://shop.example/back?order=1",
		})
		page := strings.Replace(path, "/v1/payment_intents", "/authenticate", 1)
		for _, odd := range []string{"", "?outcome=perhaps"} {
			f.control(http.MethodPost, page+odd, "").want(t, http.StatusBadRequest, nil)
		}
		done := f.control(http.MethodPost, page+"?outcome="+outcome, "")
		if to := done.header.Get("Location"); done.status != http.StatusSeeOther || !strings.Contains(to, "order=1&payment_intent=pi_") || !strings.Contains(to, "redirect_status="+outcome) {
			t.Errorf("the page answers %d and sends the customer to %q", done.status, to)
		}
		f.get(path).want(t, http.StatusOK, want)
		f.control(http.MethodPost, page+"?outcome="+outcome, "").want(t, http.StatusConflict, nil)
	}
	f.control(http.MethodPost, "/authenticate/pi_none?outcome=failed", "").want(t, http.StatusNotFound, nil)
}

func TestConcurrentConfirmations(t *testing.T) {
	t.Parallel()

	t.Run("under different keys they capture once", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		id := f.create("pm_card_visa")
		counts := statuses(f.concurrently(20, func(int) (answered, error) { return f.tryPost("/v1/payment_intents/"+id+"/confirm", "") }))
		if b := f.books(); counts[200] != 1 || counts[400] != 19 || len(b.Captures) != 1 || b.Intents[0].Captures != 1 {
			t.Errorf("answers %v, books %+v", counts, b)
		}
	})

	t.Run("a confirmation and a cancellation have one winner", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		for range 10 {
			id := f.create("pm_card_visa")
			counts := statuses(f.concurrently(2, func(i int) (answered, error) {
				return f.tryPost("/v1/payment_intents/"+id+"/"+[]string{"confirm", "cancel"}[i], "")
			}))
			if counts[200] != 1 || counts[400] != 1 {
				t.Errorf("answers %v", counts)
			}
		}
		for _, i := range f.books().Intents {
			if (i.Status == "succeeded") != (i.Captures == 1) {
				t.Errorf("%s with %d captures", i.Status, i.Captures)
			}
		}
	})
}
