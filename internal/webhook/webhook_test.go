package webhook_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/internal/webhook"
)

func verifier(t *testing.T) *standardwebhooks.Webhook {
	t.Helper()
	v, err := standardwebhooks.NewWebhook(secret)
	testdb.Must(t, err)
	return v
}

func TestDeliver_signsEachDeliveryWithItsTimeUnderTheSameID(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	clock := time.Now().Add(-time.Hour)
	s := newSender(t, webhook.Config{AllowCIDRs: loopback(), Now: func() time.Time {
		now := clock
		clock = clock.Add(time.Hour)
		return now
	}})
	for range 2 {
		testdb.Must(t, s.Deliver(t.Context(), messageTo(r.URL)))
	}
	first, second := r.got()[0], r.got()[1]
	if first.header.Get("webhook-id") != second.header.Get("webhook-id") {
		t.Errorf("ids are %s and %s", first.header.Get("webhook-id"), second.header.Get("webhook-id"))
	}
	if first.header.Get("webhook-signature") == second.header.Get("webhook-signature") {
		t.Error("the second delivery carries the first one's signature")
	}
	// The first is an hour old: only the second is within the tolerance.
	if err := verifier(t).VerifyIgnoringTimestamp(first.body, first.header); err != nil {
		t.Errorf("first delivery: %v", err)
	}
	if err := verifier(t).Verify(first.body, first.header); err == nil {
		t.Error("first delivery: an hour old and still in time")
	}
	if err := verifier(t).Verify(second.body, second.header); err != nil {
		t.Errorf("second delivery: %v", err)
	}
}

func TestDeliver_succeedsOnA2xxStatusAlone(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		200: "", 201: "", 202: "", 204: "", 299: "",
		301: "delivery", 302: "delivery", 303: "delivery", 304: "delivery", 307: "delivery", 308: "delivery",
		400: "delivery", 401: "delivery", 404: "delivery", 410: "delivery", 429: "delivery", 500: "delivery", 503: "delivery", 599: "delivery",
	} {
		elsewhere := startReceiver(t, nil)
		location := elsewhere.URL
		if status == http.StatusFound {
			location = "https://[not a URL?token=" + strings.Repeat("x", 10_000)
		}
		r := startReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", location)
			w.WriteHeader(status)
		})
		err := newSender(t, webhook.Config{AllowCIDRs: loopback()}).Deliver(t.Context(), messageTo(r.URL))
		if kinds(err) != want {
			t.Errorf("%d: error is %v, want kind %q", status, err, want)
		}
		if d, ok := errors.AsType[*webhook.DeliveryError](err); ok && d.StatusCode != status {
			t.Errorf("%d: status code is %d", status, d.StatusCode)
		}
		if len(r.got()) != 1 || elsewhere.dialed.Load() != 0 {
			t.Errorf("%d: %d requests and %d connections elsewhere, want 1 and 0", status, len(r.got()), elsewhere.dialed.Load())
		}
	}
}

func TestDeliver_reportsRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"7":                             7 * time.Second,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute,
		"Fri, 02 Jan 2026 03:04:00 GMT": 0,
		"Fri, 02 Jan 2037 03:04:00 GMT": 24 * time.Hour,
		"99999999999":                   24 * time.Hour,
		"-1":                            0,
		"soon":                          0,
		"":                              0,
	} {
		r := startReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", value)
			w.WriteHeader(http.StatusTooManyRequests)
		})
		err := newSender(t, webhook.Config{AllowCIDRs: loopback(), Now: func() time.Time { return now }}).Deliver(t.Context(), messageTo(r.URL))
		d, ok := errors.AsType[*webhook.DeliveryError](err)
		if !ok || d.RetryAfter != want {
			t.Errorf("%q: %v, want to wait %s", value, err, want)
		}
	}
}

// No receiver holds a delivery for longer than its time-out, and no error quotes
// the target.
func TestDeliver_isBoundedByItsTimeout(t *testing.T) {
	t.Parallel()
	raw := func(serve func(net.Conn)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			serve(conn)
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}
	drip := func(conn net.Conn, piece string) {
		for {
			if _, err := io.WriteString(conn, piece); err != nil {
				return
			}
		}
	}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"silence":                     {raw(func(net.Conn) {}), "delivery"},
		"half a status line":          {raw(func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 2") }), "delivery"},
		"headers without end":         {raw(func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"); drip(c, "X-More: and more\r\n") }), "delivery"},
		"interim answers without end": {raw(func(c net.Conn) { drip(c, "HTTP/1.1 103 Early Hints\r\nX: "+strings.Repeat("x", 1000)+"\r\n\r\n") }), "delivery"},
		"a body that never comes":     {raw(func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n") }), ""},
		"a body without end": {raw(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			drip(c, strings.Repeat("x", 1000))
		}), ""},
		"a refusal without end": {raw(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 500 No\r\n\r\n")
			drip(c, strings.Repeat("x", 1000))
		}), "delivery"},
		"a long line that is not HTTP": {raw(func(c net.Conn) { _, _ = io.WriteString(c, strings.Repeat("x", 50_000)+"\r\n\r\n"); _ = c.Close() }), "delivery"},
		"something that is not HTTP":   {raw(func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.6\r\n"); _ = c.Close() }), "delivery"},
		"a refused connection":         {nil, "delivery"},
		"a cut":                        {raw(func(c net.Conn) { _ = c.Close() }), "delivery"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t, tc.answer)
			if tc.answer == nil {
				r.Close()
			}
			timeout := 300 * time.Millisecond
			if tc.want == "" { // a busy machine is late with the status
				timeout = 5 * time.Second
			}
			s := newSender(t, webhook.Config{AllowCIDRs: loopback(), Timeout: timeout})
			err := s.Deliver(t.Context(), messageTo(r.URL+"?token=hush"))
			if kinds(err) != tc.want {
				t.Errorf("error is %v, want kind %q", err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "127.0.0.1")) {
				t.Errorf("the error quotes the target: %v", err)
			}
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("the receiver chose an error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestDeliver_verifiesTheCertificate(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	r.StartTLS()
	stranger := newSender(t, webhook.Config{AllowCIDRs: loopback()})
	if err := stranger.Deliver(t.Context(), messageTo(r.URL)); kinds(err) != "delivery" || len(r.got()) != 0 {
		t.Errorf("unknown certificate: %v after %d deliveries, want a delivery error and none", err, len(r.got()))
	}
	friend := newSender(t, webhook.Config{AllowCIDRs: loopback()})
	roots := x509.NewCertPool()
	roots.AddCert(r.Certificate())
	friend.Trust(roots)
	if err := friend.Deliver(t.Context(), messageTo(r.URL)); err != nil || len(r.got()) != 1 {
		t.Errorf("known certificate: %v after %d deliveries, want one", err, len(r.got()))
	}
}

func TestDeliver_signsByEverySecretInOrder(t *testing.T) {
	t.Parallel()
	const older, oldest = "whsec_b2xkZXItc2VjcmV0LW9mLXRoZS1zaG9w", "whsec_b2xkZXN0LXNlY3JldC1vZi10aGUtc2hvcA=="
	for name, test := range map[string]struct {
		secrets []string
		want    []string // the secrets that verify it, in this order
	}{
		"one":                            {[]string{secret}, []string{secret}},
		"two":                            {[]string{secret, older}, []string{secret, older}},
		"two, the other way round":       {[]string{older, secret}, []string{older, secret}},
		"three":                          {[]string{secret, older, oldest}, []string{secret, older, oldest}},
		"one that signs nothing, beside": {[]string{"whsec_hush!", older}, []string{older}},
		"one that is empty, beside":      {[]string{older, "whsec_"}, []string{older}},
	} {
		r := startReceiver(t, nil)
		w := messageTo(r.URL)
		w.Secrets = test.secrets
		if err := newSender(t, webhook.Config{AllowCIDRs: loopback()}).Deliver(t.Context(), w); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := r.got()[0]
		list := strings.Split(got.header.Get("webhook-signature"), " ")
		if len(list) != len(test.want) {
			t.Errorf("%s: the signatures are %q, want %d", name, list, len(test.want))
			continue
		}
		if string(got.body) != body || got.header.Get("Content-Type") != "application/json" || got.header.Get("webhook-id") != "evt_1" {
			t.Errorf("%s: received %s with %v", name, got.body, got.header)
		}
		for i, by := range test.want {
			v, err := standardwebhooks.NewWebhook(by)
			testdb.Must(t, err)
			if err := v.Verify(got.body, got.header); err != nil {
				t.Errorf("%s: secret %d alone does not verify it: %v", name, i, err)
			}
			alone := got.header.Clone()
			alone.Set("webhook-signature", list[i])
			if err := v.Verify(got.body, alone); err != nil || !strings.HasPrefix(list[i], "v1,") {
				t.Errorf("%s: signature %d, %q, is not by secret %d: %v", name, i, list[i], i, err)
			}
		}
	}
}

func TestCheckSecret(t *testing.T) {
	t.Parallel()
	if err := webhook.CheckSecret(secret); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "whsec_", "whsec_hush!", "hush", "aHVzaA==", " " + secret, secret + "\n", "WHSEC_aHVzaA==", "whsec_aHVzaA"} {
		if err := webhook.CheckSecret(bad); kinds(err) != "target" || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: %v, want it refused without the secret in the text", bad, err)
		}
	}
}

func TestDeliver_refusesWhatItCannotSign(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	s := newSender(t, webhook.Config{AllowCIDRs: loopback()})
	for name, w := range map[string]webhook.Message{
		"no secret":               {URL: r.URL, ID: "evt_1"},
		"a secret not in base64":  {URL: r.URL, ID: "evt_1", Secrets: []string{"whsec_hush!"}},
		"no id":                   {URL: r.URL, Secrets: []string{secret}},
		"an id with a line break": {URL: r.URL, Secrets: []string{secret}, ID: "evt\r\nX: y"},
	} {
		if err := s.Deliver(t.Context(), w); kinds(err) != "target" || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want it refused without the secret in the text", name, err)
		}
	}
	if got := r.dialed.Load(); got != 0 {
		t.Errorf("%d connections, want none", got)
	}
}

func TestDeliver_returnsTheErrorOfItsContext(t *testing.T) {
	t.Parallel()
	waiting := make(chan struct{})
	r := startReceiver(t, func(_ http.ResponseWriter, r *http.Request) {
		close(waiting)
		<-r.Context().Done()
	})
	s := newSender(t, webhook.Config{AllowCIDRs: loopback()})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-waiting
		cancel()
	}()
	if err := s.Deliver(ctx, messageTo(r.URL)); kinds(err) != "context" {
		t.Errorf("%v, want the context's error", err)
	}
	if err := s.Deliver(ctx, messageTo(r.URL)); kinds(err) != "context" || len(r.got()) != 1 {
		t.Errorf("%v after %d requests, want the context's error and nothing more sent", err, len(r.got()))
	}
}

func TestNew_boundsIdleConnectionsAndUsesNoProxy(t *testing.T) {
	t.Parallel()
	for _, tr := range newSender(t, webhook.Config{}).Transports() {
		if tr.Proxy != nil || tr.MaxIdleConnsPerHost != 64 || tr.MaxIdleConns != 256 || tr.MaxResponseHeaderBytes != 64<<10 {
			t.Errorf("a proxy is %t, bounds are %d, %d and %d", tr.Proxy != nil, tr.MaxIdleConnsPerHost, tr.MaxIdleConns, tr.MaxResponseHeaderBytes)
		}
	}
}

// The observer learns host and status of a delivery, and adds headers to it but
// replaces none that are signed.
func TestDeliver_reportsToItsObserver(t *testing.T) {
	t.Parallel()
	status := http.StatusNoContent
	r := startReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	var hosts []string
	var statuses []int
	s := newSender(t, webhook.Config{
		AllowCIDRs: loopback(),
		Observe: func(ctx context.Context, host string) (map[string]string, func(int)) {
			if ctx.Value(callers{}) == nil {
				t.Error("the observer has another context than the caller's")
			}
			hosts = append(hosts, host)
			return map[string]string{"traceparent": "t1", "webhook-id": "forged", "Webhook-Signature": "forged"},
				func(status int) { statuses = append(statuses, status) }
		},
	})
	ctx := context.WithValue(t.Context(), callers{}, true)
	testdb.Must(t, s.Deliver(ctx, messageTo(r.URL+"/hook?token=private")))
	got := r.got()[0]
	if err := verifier(t).Verify(got.body, got.header); err != nil {
		t.Errorf("verify: %v", err)
	}
	if got.header.Get("Traceparent") != "t1" {
		t.Errorf("received with %v", got.header)
	}
	status = http.StatusServiceUnavailable
	if err := s.Deliver(ctx, messageTo(r.URL)); kinds(err) != "delivery" {
		t.Errorf("refused with %v", err)
	}
	r.Close()
	if err := s.Deliver(ctx, messageTo(r.URL)); kinds(err) != "delivery" {
		t.Errorf("refused with %v", err)
	}
	testrun.Same(t, "statuses", []int{http.StatusNoContent, http.StatusServiceUnavailable, 0}, statuses)
	testrun.Same(t, "hosts", []string{"127.0.0.1", "127.0.0.1", "127.0.0.1"}, hosts)
}

type callers struct{}
