package stripe_test

import (
	"encoding/hex"
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
)

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
