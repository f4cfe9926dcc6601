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

// serveEvents starts an API that takes events under two secrets.
func serveEvents(t *testing.T) *world {
	t.Helper()
	return serveWith(t, takesEvents)
}

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

func TestSignature(t *testing.T) {
	t.Parallel()
	w := serveEvents(t)
	charge := strings.TrimPrefix(w.accept(t, "key-1", body()).header.Get("Location"), "/v1/charges/")
	before := rows(t, w.db)
	news := event("evt_1", "payment_intent.succeeded", intentOf(charge))
	now := unix(0)
	right := mac(stripeSecret, now, news)
	for _, test := range []struct {
		name    string
		headers []string
	}{
		{"no header", nil},
		{"an empty header", []string{""}},
		{"a repeated header", []string{"t=" + now + ",v1=" + right, "t=" + now + ",v1=" + right}},
		{"no time", []string{"v1=" + right}},
		{"a time that is no number", []string{"t=now,v1=" + right}},
		{"a time beyond 64 bits", []string{"t=92233720368547758080,v1=" + mac(stripeSecret, "92233720368547758080", news)}},
		{"the last time of 64 bits", []string{"t=9223372036854775807,v1=" + mac(stripeSecret, "9223372036854775807", news)}},
		{"milliseconds", []string{"t=" + now + "000,v1=" + mac(stripeSecret, now+"000", news)}},
		{"301 seconds old", []string{"t=" + unix(-301) + ",v1=" + mac(stripeSecret, unix(-301), news)}},
		{"301 seconds ahead", []string{"t=" + unix(301) + ",v1=" + mac(stripeSecret, unix(301), news)}},
		{"two times, the last one not signed", []string{"t=" + now + ",t=" + unix(-1) + ",v1=" + right}},
		{"no signature", []string{"t=" + now}},
		{"a signature cut short", []string{"t=" + now + ",v1=" + right[:62]}},
		{"a signature and more", []string{"t=" + now + ",v1=" + right + "00"}},
		{"a signature that is not hexadecimal", []string{"t=" + now + ",v1=" + strings.Repeat("zz", 32)}},
		{"only the scheme v0", []string{"t=" + now + ",v0=" + right}},
		{"a part without a name", []string{"t=" + now + ",=" + right}},
		{"a part without a value", []string{"t=" + now + ",v1=" + right + ",x"}},
		{"a space before the scheme", []string{"t=" + now + ", v1=" + right}},
		{"not UTF-8", []string{"t=" + now + ",v1=\xff\xfe"}},
		{"another secret", []string{"t=" + now + ",v1=" + mac("whsec_other", now, news)}},
		{"the empty secret", []string{"t=" + now + ",v1=" + mac("", now, news)}},
		{"another body", []string{"t=" + now + ",v1=" + mac(stripeSecret, now, strings.Replace(news, "evt_1", "evt_2", 1))}},
		{"the moment and the body run together", []string{"t=" + now[:9] + ",v1=" + mac(stripeSecret, now[:9], now[9:]+"."+news)}},
		{"very many signatures", []string{"t=" + now + strings.Repeat(",v1="+strings.Repeat("0", 64), 100_000)}},
	} {
		t.Run(test.name+" is refused", func(t *testing.T) {
			a := direct(t, w.handler, unsigned(news).with("Stripe-Signature", test.headers...))
			wantProblem(t, a, "/problems/webhook-signature")
			if strings.Contains(a.body, right) || strings.Contains(a.body, stripeSecret) {
				t.Errorf("the answer helps: %s", a.body)
			}
			wantRows(t, w.db, before, nil)
		})
	}
}

func TestSignature_isAccepted(t *testing.T) {
	t.Parallel()
	w := serveEvents(t)
	const news = `{"id":"evt_1","type":"customer.created"}`
	now := unix(0)
	right := mac(stripeSecret, now, news)
	for name, header := range map[string]string{
		"a signature":                          "t=" + now + ",v1=" + right,
		"the signature before the time":        "v1=" + right + ",t=" + now,
		"a signature among wrong ones":         "t=" + now + ",v1=" + strings.Repeat("0", 64) + ",v1=x,v1=" + right + ",v0=1,v9=2",
		"a signature after very many":          "t=" + now + strings.Repeat(",v1="+strings.Repeat("0", 64), 100_000) + ",v1=" + right,
		"upper case":                           "t=" + now + ",v1=" + strings.ToUpper(right),
		"the secret before it was changed":     "t=" + now + ",v1=" + mac(olderSecret, now, news),
		"300 seconds old":                      "t=" + unix(-300) + ",v1=" + mac(stripeSecret, unix(-300), news),
		"300 seconds ahead":                    "t=" + unix(300) + ",v1=" + mac(stripeSecret, unix(300), news),
		"two times, the last one signed":       "t=" + unix(-9) + ",t=" + now + ",v1=" + right,
		"a time with a sign and leading zeros": "t=+00" + now + ",v1=" + right,
	} {
		t.Run(name, func(t *testing.T) {
			if a := direct(t, w.handler, unsigned(news).with("Stripe-Signature", header)); a.status != http.StatusOK {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		})
	}
}

// Without a secret no signature is valid, not even one by the empty secret.
func TestSignature_isRefusedWithoutASecret(t *testing.T) {
	t.Parallel()
	const news = `{"id":"evt_1","type":"customer.created"}`
	for name, secrets := range map[string][]string{"none": nil, "an empty one": {""}, "two empty ones": {"", ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serveWith(t, func(api *httpapi.Config) { api.StripeSecrets, api.Now = secrets, noon })
			for _, secret := range []string{"", stripeSecret} {
				c := unsigned(news).with("Stripe-Signature", "t="+unix(0)+",v1="+mac(secret, unix(0), news))
				wantProblem(t, w.send(t, c), "/problems/webhook-signature")
			}
		})
	}
}
