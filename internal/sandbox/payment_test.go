package sandbox_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/sandbox"
)

// What is created and retrieved is in TestSDK of internal/stripe.
func TestCreateIntent(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	a := f.post(intents, "", "amount", "100", "currency", "jpy", "payment_method", "pm_card_visa",
		"automatic_payment_methods[enabled]", "true", "automatic_payment_methods[allow_redirects]", "never")
	a.want(t, 200, members{"status": "requires_confirmation", "latest_charge": nil, "last_payment_error": nil, "livemode": false})
	if f.get(intents+"/"+a.text("id")).raw != a.raw || a.header.Get("Request-Id") == "" || a.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("headers: %v; the intent retrieved is not the intent created: %s", a.header, a.raw)
	}
	f.post(intents, "", eur("500", "payment_method", "pm_card_visa", "confirm", "true")...).
		want(t, 200, members{"status": "succeeded", "amount_received": 500.0})
	for code, amounts := range map[string][2]string{
		"isk": {"550", "500"}, "UGX": {"10", "100"}, "KWD": {"5124", "1000000000000"}, "gbp": {"29", "30"},
	} {
		f.post(intents, "", "amount", amounts[0], "currency", code).want(t, 400, members{"error.type": "invalid_request_error", "error.param": "amount"})
		f.post(intents, "", "amount", amounts[1], "currency", code).want(t, 200, members{"currency": strings.ToLower(code)})
	}
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
	visa, back := []string{"payment_method", "pm_card_visa"}, []string{"return_url", "https://shop.example/back"}
	unattended := []string{"off_session", "true", "error_on_requires_action", "true"}
	captured := members{"status": "succeeded", "amount_received": 1000.0, "last_payment_error": nil}
	canceled := step{"cancel", []string{"cancellation_reason", "abandoned"}, 200, members{"status": "canceled", "cancellation_reason": "abandoned"}}
	processing := step{"confirm", nil, 200, members{"status": "processing", "amount_received": 0.0, "last_payment_error": nil}}
	action := step{"confirm", back, 200, members{"status": "requires_action", "next_action.type": "redirect_to_url", "last_payment_error": nil}}
	decline := step{"confirm", nil, 402, nil}
	for name, test := range map[string]struct {
		method string
		steps  []step
	}{
		"pm_card_visa is captured":                                  {"pm_card_visa", []step{{"confirm", unattended, 200, captured}, {"", nil, 200, captured}}},
		"pm_card_chargeDeclined is declined":                        {"pm_card_chargeDeclined", declined("card_declined", "generic_decline")},
		"pm_card_chargeDeclinedInsufficientFunds is declined":       {"pm_card_chargeDeclinedInsufficientFunds", declined("card_declined", "insufficient_funds")},
		"pm_card_authenticationRequired is declined":                {"pm_card_authenticationRequired", declined("authentication_required", "authentication_required")},
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
			f.take(t, f.create(test.method), test.steps...)
		})
	}
}

func TestIntent_customerAuthenticates(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	for outcome, want := range map[string]members{
		"succeeded": {"status": "succeeded", "amount_received": 1000.0, "next_action": nil},
		"failed":    {"status": "requires_payment_method", "last_payment_error.code": "payment_intent_authentication_failure", "next_action": nil},
	} {
		id := f.create("pm_card_authenticationRequired")
		f.take(t, id, step{"confirm", []string{"return_url", "https://shop.example/back?order=1"}, 200, members{
			"next_action.redirect_to_url.url": f.url + "/authenticate/" + id, "next_action.redirect_to_url.return_url": "https://shop.example/back?order=1",
		}})
		act := func(query string) answered { return f.control(http.MethodPost, "/authenticate/"+id+query, "") }
		for _, odd := range []string{"", "?outcome=perhaps"} {
			act(odd).want(t, http.StatusBadRequest, nil)
		}
		act("?outcome="+outcome).want(t, 200, nil)
		f.take(t, id, step{"", nil, 200, want})
		act("?outcome="+outcome).want(t, 400, members{"error.code": "payment_intent_unexpected_state"})
	}
	f.control(http.MethodPost, "/authenticate/pi_none?outcome=failed", "").want(t, http.StatusNotFound, nil)
}

func TestRefund(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	of := func(amount string) []string { return []string{"amount", amount} }
	id := f.captured("pm_card_visa")
	part := []string{"amount", "400", "reason", "requested_by_customer", "metadata[refund_id]", "re_9"}
	f.take(t, id,
		step{"refunds", part, 200, members{"amount": 400.0, "reason": "requested_by_customer", "metadata": members{"refund_id": "re_9"}}},
		step{"refunds", of("601"), 400, members{"error.param": "amount"}}, step{"refunds", nil, 200, members{"amount": 600.0}},
		step{"refunds", nil, 400, members{"error.code": "charge_already_refunded"}})
	f.take(t, f.create("pm_card_visa"), step{"refunds", nil, 400, members{"error.param": "payment_intent"}})
	failed := step{"refunds", of("1000"), 200, members{"status": "failed", "failure_reason": "expired_or_canceled_card"}}
	f.take(t, f.captured("pm_card_refundFail"), failed, failed)
	if n := len(f.books().Refunds); n != 2 {
		t.Errorf("the books have %d refunds, want the two that were paid", n)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	id := f.create("pm_card_visa")
	for name, tc := range map[string]struct {
		path   string
		pairs  []string
		status int
		code   any
		param  any
	}{
		"no amount":                {intents, []string{"currency", "eur"}, 400, "parameter_missing", "amount"},
		"no currency":              {intents, []string{"amount", "100"}, 400, "parameter_missing", "currency"},
		"an amount of zero":        {intents, eur("0"), 400, "parameter_invalid_integer", "amount"},
		"a fractional amount":      {intents, eur("1.5"), 400, "parameter_invalid_integer", "amount"},
		"an expansion":             {intents, eur("100", "expand[]", "latest_charge"), 400, "parameter_unknown", "expand[]"},
		"confirm without a method": {intents, eur("100", "confirm", "true"), 400, "parameter_missing", "payment_method"},
		"a boolean that is none":   {intents, eur("100", "confirm", "yes"), 400, nil, "confirm"},
		"a body too large":         {intents, eur("100", "description", strings.Repeat("x", 70_000)), 413, nil, nil},
		"confirming an unknown":    {confirmation(id), []string{"payment_method", "pm_1"}, 400, "resource_missing", "payment_method"},
		"confirming no intent":     {confirmation("pi_none"), nil, 404, "resource_missing", "intent"},
		"canceling no intent":      {intents + "/pi_none/cancel", nil, 404, "resource_missing", "intent"},
		"refunding nothing":        {"/v1/refunds", nil, 400, "parameter_missing", "payment_intent"},
		"refunding no intent":      {"/v1/refunds", []string{"payment_intent", "pi_none"}, 400, "resource_missing", "payment_intent"},
		"refunding zero":           {"/v1/refunds", []string{"payment_intent", id, "amount", "0"}, 400, "parameter_invalid_integer", "amount"},
		"an unknown call":          {"/v1/customers", nil, 404, nil, nil},
	} {
		t.Run(name+" is refused and its key stays free", func(t *testing.T) {
			t.Parallel()
			key := "refused: " + name
			for range 2 {
				a := f.post(tc.path, key, tc.pairs...)
				a.want(t, tc.status, members{"error.type": "invalid_request_error", "error.code": tc.code, "error.param": tc.param})
				if a.text("error.message") == "" || a.header.Get("Idempotent-Replayed") != "" {
					t.Errorf("answered %v %s", a.header, a.raw)
				}
			}
			f.post(intents, key, eur("100")...).want(t, 200, members{"object": "payment_intent"})
		})
	}
	for path, status := range map[string]int{
		intents + "/pi_none": 404, "/v1/refunds/re_none": 404, "/v1/refunds/" + id: 404, "/v1/nothing": 404, "/v1/": 404,
		intents + "?limit=0": 400, intents + "?limit=101": 400, intents + "?limit=x": 400, intents + "?starting_after=pi_none": 400,
		intents + "?customer=cus_1": 400, intents + "?%zz": 400,
	} {
		f.get(path).want(t, status, members{"error.type": "invalid_request_error"})
	}
	for _, authorization := range []string{"", "Bearer", "Bearer sk_live_abc", "Bearer pk_test_abc", "Digest username=\"sk_test_abc\""} {
		f.must(f.do(http.MethodGet, intents, "", http.Header{"Authorization": {authorization}})).want(t, 401, members{"error.type": "invalid_request_error"})
	}
}
