package stripe_test

import (
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85/webhook"

	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
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

// FuzzSignature compares the api, which must not link stripe-go, with the provider's own code: for any header over any
// body both accept or both refuse, but for the empty secret, which the api refuses. In a header {t} stands for the time
// of the api, {v1} for the right signature at that time, and {V1} for the same in capitals.
// internal/httpapi.TestSignature has signatures that are accepted, and those of other times.
func FuzzSignature(f *testing.F) {
	wrong := strings.Repeat("0", 64)
	for _, header := range []string{
		"t={t},v1={v1}", "v1={v1},t={t}", "t={t},v1={V1}", "t={t},v1=" + wrong + ",v1={v1},v0=" + wrong, "t={t},v1=zz,v1={v1}", "t={t},v1=,v1={v1}",
		"t=1,t={t},v1={v1}", "t=+{t},v1={v1}", "t=00{t},v1={v1}", "t={t},v1={v1},x=", "t={t},v1={v1},=x", "", ",", "=", "t={t}", "v1={v1}", "t={t},v1=",
		"t={t},v1=" + wrong, "t={t},v1={v1}00", "t={t},v1=0{v1}", "t={t},v1={v1} ", "t={t}, v1={v1}", " t={t},v1={v1}", "t={t},v0={v1}", "t={t},V1={v1}",
		"T={t},v1={v1}", "t={t},t=1,v1={v1}", "t=,v1={v1}", "t=x,t={t},v1={v1}", "t={t}.0,v1={v1}", "t=1_0,v1={v1}", "t=9223372036854775807,v1={v1}",
		"t=9223372036854775808,v1={v1}", "t=-9223372036854775808,v1={v1}", "t={t},v1={v1},x", "t={t},v1={v1},x=y=z", "t={t},v1={v1},", "t={t}&v1={v1}",
	} {
		f.Add(header, `{"id":"evt_1"}`, "whsec_1")
	}
	f.Add("t={t},v1={v1}", "", "\x00")
	f.Add("t={t},v1={v1}", "\xff", "\xff")
	f.Add("t={t},v1={v1}", "{}", "")
	at := time.Unix(1_800_000_000, 0)
	api := httpapi.New(httpapi.Config{
		DB: (*postgres.DB)(nil), Intake: &intake.Intake{}, Now: func() time.Time { return at }, Log: slog.New(slog.DiscardHandler),
	})
	f.Fuzz(func(t *testing.T, header, body, secret string) {
		if len(body) > 64<<10 {
			t.Skip("too large whatever its signature is")
		}
		right := hex.EncodeToString(webhook.ComputeSignature(at, []byte(body), secret))
		signed := strings.NewReplacer(
			"{t}", strconv.FormatInt(at.Unix(), 10), "{v1}", right, "{V1}", strings.ToUpper(right),
		).Replace(header)
		theirs := webhook.ValidatePayloadIgnoringTolerance([]byte(body), signed, secret) == nil
		api.StripeSecrets = []string{secret}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/webhooks/stripe", strings.NewReader(body))
		r.Header["Stripe-Signature"] = []string{signed}
		recorder := httptest.NewRecorder()
		api.Handler().ServeHTTP(recorder, r)
		ours := !strings.Contains(recorder.Body.String(), "/problems/webhook-signature")
		if ours != (theirs && secret != "") {
			t.Errorf("we accept: %t, Stripe accepts: %t", ours, theirs)
		}
	})
}
