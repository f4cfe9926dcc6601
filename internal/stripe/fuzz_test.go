package stripe_test

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/stripe"
)

// FuzzAnswer gives any answer to each call. What comes of it is an object of the form that was
// asked for, from an answer of 2xx, or exactly one kind of error.
func FuzzAnswer(f *testing.F) {
	list := func(items string) string { return `{"object":"list","data":[` + items + `],"has_more":false}` }
	for _, body := range []string{
		"", "{}", "null", "[]", "<html>", intentJSON(), intentJSON("status", "succeeded", "amount_received", 1999), intentJSON("id", "pi_2"),
		intentJSON("currency", "mga", "amount", -9223372036854775808), intentJSON("currency", "isk", "amount", 101), intentJSON("status", "odd"),
		refundJSON(), refundJSON("payment_intent", nil), refundJSON("status", "failed"),
		list(refundJSON()), list(refundJSON() + "," + refundJSON()), list("{}"), list("null"), `{"object":"list","data":[],"has_more":true}`,
		errorJSON("card_error", "card_declined"), errorJSON("card_error", "card_declined", "payment_intent", map[string]any{"id": "pi_2"}),
		errorJSON("idempotency_error", "idempotency_key_in_use"),
		errorJSON("invalid_request_error", "payment_intent_unexpected_state"), `{"error":null}`, `{"error":"x"}`,
	} {
		for _, status := range []int{200, 302, 400, 402, 409, 429, 500, 503} {
			f.Add(status, "1", "true", body)
		}
	}
	var status int
	var retryAfter, replayed, body string
	p := newProvider(f, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Retry-After"], w.Header()["Idempotent-Replayed"] = []string{retryAfter}, []string{replayed}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	c := newClient(f, p.URL, 10*time.Second)
	f.Fuzz(func(t *testing.T, s int, after, again, b string) {
		status, retryAfter, replayed, body = 200+(s%400+400)%400, after, again, b
		check := func(call string, valid bool, err error) {
			_, known := errors.AsType[*stripe.Error](err)
			if err != nil && !known || err == nil && (!valid || status > 299) {
				t.Errorf("%s of %d %q: valid %t, error %v", call, status, body, valid, err)
			}
		}
		in, err := c.RetrieveIntent(t.Context(), "pi_1")
		check("retrieve", in.ID == "pi_1" && in.Currency != "", err)
		in, err = c.CancelIntent(t.Context(), "pi_1")
		check("cancel", in.ID == "pi_1" && in.Currency != "", err)
		in, err = c.ConfirmIntent(t.Context(), "key", "pi_1", "")
		check("confirm", in.ID == "pi_1" && in.Currency != "", err)
		r, err := c.CreateRefund(t.Context(), "key", stripe.RefundParams{Reference: "re_ours", PaymentIntent: "pi_1", Amount: 1, Currency: "EUR"})
		check("refund", r.ID != "" && r.Currency != "", err)
		for r, err := range c.Refunds(t.Context(), "pi_1") {
			check("list", r.ID != "" && r.Currency != "", err)
		}
	})
}
