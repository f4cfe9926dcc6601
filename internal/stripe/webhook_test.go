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

// The api must not link stripe-go, so it verifies the signatures of events itself.
// These tests compare it with the provider's own code.

// verifier is an api with one clock and one secret at a time.
type verifier struct {
	*httpapi.API

	now time.Time
}

// accepts reports whether the api accepts the signature at the time now.
func (v *verifier) accepts(tb testing.TB, header, body, secret string) bool {
	tb.Helper()
	v.StripeSecrets, v.now = []string{secret}, time.Now()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodPost, "/v1/webhooks/stripe", strings.NewReader(body))
	r.Header["Stripe-Signature"] = []string{header}
	recorder := httptest.NewRecorder()
	v.Handler().ServeHTTP(recorder, r)
	return !strings.Contains(recorder.Body.String(), "/problems/webhook-signature")
}

// compare gives both a header. In it {t} stands for a time so many seconds ago,
// {v1} for the right signature at that time, and {V1} for the same in capitals.
func (v *verifier) compare(tb testing.TB, header, body, secret string, age int64) (ours, theirs bool) {
	tb.Helper()
	for {
		at := time.Unix(time.Now().Unix()-age, 0)
		right := hex.EncodeToString(webhook.ComputeSignature(at, []byte(body), secret))
		signed := strings.NewReplacer(
			"{t}", strconv.FormatInt(at.Unix(), 10), "{v1}", right, "{V1}", strings.ToUpper(right),
		).Replace(header)
		// Stripe's code reads the clock itself, some time between these two.
		before := v.accepts(tb, signed, body, secret)
		theirs = webhook.ValidatePayload([]byte(body), signed, secret) == nil
		if after := v.accepts(tb, signed, body, secret); after == before {
			return before, theirs
		} // the signature became too old meanwhile
	}
}

// stricter reports whether the api refuses on purpose what Stripe accepts: a
// signature made ahead of time, and the empty secret.
func stricter(secret string, age int64) bool { return secret == "" || age < -300 }

// FuzzSignature: for any header over any body both accept or both refuse, except for what the
// api refuses on purpose. internal/httpapi.TestSignature has signatures that are accepted.
func FuzzSignature(f *testing.F) {
	wrong := strings.Repeat("0", 64)
	for _, header := range []string{
		"t={t},v1={v1}", "v1={v1},t={t}", "t={t},v1={V1}", "t={t},v1=" + wrong + ",v1={v1},v0=" + wrong, "t={t},v1=zz,v1={v1}", "t={t},v1=,v1={v1}",
		"t=1,t={t},v1={v1}", "t=+{t},v1={v1}", "t=00{t},v1={v1}", "t={t},v1={v1},x=", "t={t},v1={v1},=x", "", ",", "=", "t={t}", "v1={v1}", "t={t},v1=",
		"t={t},v1=" + wrong, "t={t},v1={v1}00", "t={t},v1=0{v1}", "t={t},v1={v1} ", "t={t}, v1={v1}", " t={t},v1={v1}", "t={t},v0={v1}", "t={t},V1={v1}",
		"T={t},v1={v1}", "t={t},t=1,v1={v1}", "t=,v1={v1}", "t=x,t={t},v1={v1}", "t={t}.0,v1={v1}", "t=1_0,v1={v1}", "t=9223372036854775807,v1={v1}",
		"t=9223372036854775808,v1={v1}", "t=-9223372036854775808,v1={v1}", "t={t},v1={v1},x", "t={t},v1={v1},x=y=z", "t={t},v1={v1},", "t={t}&v1={v1}",
	} {
		f.Add(header, `{"id":"evt_1"}`, "whsec_1", int64(0))
	}
	for _, age := range []int64{290, -290, 310, 1 << 40, -301} {
		f.Add("t={t},v1={v1}", "{}", "whsec_1", age)
	}
	f.Add("t={t},v1={v1}", "", "\x00", int64(0))
	f.Add("t={t},v1={v1}", "\xff", "\xff", int64(299))
	f.Add("t={t},v1={v1}", "{}", "", int64(0))
	v := &verifier{}
	v.API = httpapi.New(httpapi.Config{
		DB: (*postgres.DB)(nil), Intake: &intake.Intake{}, Now: func() time.Time { return v.now }, Log: slog.New(slog.DiscardHandler),
	})
	f.Fuzz(func(t *testing.T, header, body, secret string, age int64) {
		if len(body) > 64<<10 {
			t.Skip("too large whatever its signature is")
		}
		ours, theirs := v.compare(t, header, body, secret, age)
		if ours && (!theirs || secret == "") || theirs && !ours && !stricter(secret, age) {
			t.Errorf("we accept: %t, Stripe accepts: %t", ours, theirs)
		}
	})
}
