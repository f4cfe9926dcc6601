package httpapi_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/httpapi"
)

const (
	stripeSecret = "whsec_of_the_endpoint"
	olderSecret  = "whsec_before_it_was_changed"
)

// noon is the time of every API that receives events here.
func noon() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// takesEvents has an API take events under two secrets.
func takesEvents(api *httpapi.Config) {
	api.StripeSecrets, api.Now = []string{stripeSecret, olderSecret}, noon
}

// mac is the signature of a body at a time.
func mac(secret, at, body string) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(at + "." + body))
	return hex.EncodeToString(h.Sum(nil))
}

// unix is a time so many seconds after noon.
func unix(seconds int64) string { return strconv.FormatInt(noon().Unix()+seconds, 10) }

// signed delivers an event as the provider does.
func signed(body string) call {
	return unsigned(body).with("Stripe-Signature", "t="+unix(0)+",v1="+mac(stripeSecret, unix(0), body))
}

func unsigned(body string) call {
	return call{
		method: http.MethodPost, path: "/v1/webhooks/stripe", body: body,
		header: http.Header{"Content-Type": {"application/json; charset=utf-8"}},
	}
}

// TestSignature: internal/stripe compares more headers with what Stripe's own code accepts.
func TestSignature(t *testing.T) {
	t.Parallel()
	w := serve(t, takesEvents)
	charge := idOf(w.accept(t, "key-1", body()).header.Get("Location"))
	news := event("evt_1", "payment_intent.succeeded", intentOf(charge))
	now, many := unix(0), strings.Repeat(",v1="+strings.Repeat("0", 64), 100_000)
	right := mac(stripeSecret, now, news)
	at := func(moment, secret string) []string {
		return []string{"t=" + moment + ",v1=" + mac(secret, moment, news)}
	}
	before := rows(t, w.db)
	for _, test := range []struct {
		name    string
		headers []string
		good    bool
	}{
		{"a repeated header", []string{"t=" + now + ",v1=" + right, "t=" + now + ",v1=" + right}, false},
		{"301 seconds old", at(unix(-301), stripeSecret), false},
		{"301 seconds ahead", at(unix(301), stripeSecret), false},
		{"another secret", at(now, "whsec_other"), false},
		{"the moment and the body run together", []string{"t=" + now[:9] + ",v1=" + mac(stripeSecret, now[:9], now[9:]+"."+news)}, false},
		{"a signature after very many", []string{"t=" + now + many + ",v1=" + right}, true},
		{"the secret before it was changed", at(now, olderSecret), true},
		{"300 seconds old", at(unix(-300), stripeSecret), true},
		{"300 seconds ahead", at(unix(300), stripeSecret), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := direct(t, w.handler, unsigned(news).with("Stripe-Signature", test.headers...))
			if test.good {
				wantReceived(t, a)
				return
			}
			wantProblem(t, a, "/problems/webhook-signature")
			if says := strings.Contains(a.body, "5m1s from this server's time: the server's clock is wrong"); says != strings.HasPrefix(test.name, "301 seconds") {
				t.Errorf("whether it names the clock: %v: %s", says, a.body)
			}
			if strings.Contains(a.body, right) || strings.Contains(a.body, stripeSecret) {
				t.Errorf("the answer helps: %s", a.body)
			}
			wantRows(t, w.db, before, nil)
		})
	}
}
