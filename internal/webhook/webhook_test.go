package webhook_test

import (
	"bufio"
	"cmp"
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

// TestDeliver_succeedsOnA2xxStatusAlone: one request is sent, redirects are not followed, and the
// receiver may say when to deliver again.
func TestDeliver_succeedsOnA2xxStatusAlone(t *testing.T) {
	t.Parallel()
	elsewhere := startReceiver(t, nil)
	for _, test := range []struct {
		statuses []int
		header   string // and its value
		want     string
		after    time.Duration
	}{
		{[]int{200, 201, 202, 204, 299}, "", "", 0},
		{[]int{301, 302, 303, 304, 307, 308}, "Location: " + elsewhere.URL, "delivery", 0},
		{[]int{302}, "Location: https://[not a URL?token=" + strings.Repeat("x", 10_000), "delivery", 0},
		{[]int{400, 401, 404, 410, 429, 500, 503, 599}, "", "delivery", 0},
		{[]int{429, 503}, "Retry-After: 7", "delivery", 7 * time.Second},
		{[]int{429}, "Retry-After: 99999999999", "delivery", 24 * time.Hour},
		{[]int{429}, "Retry-After: -1", "delivery", 0},
		{[]int{429}, "Retry-After: soon", "delivery", 0},
	} {
		for _, status := range test.statuses {
			r := startReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
				name, value, _ := strings.Cut(test.header, ": ")
				w.Header().Set(name, value)
				w.WriteHeader(status)
			})
			err := newSender(t, webhook.Config{AllowCIDRs: loopback()}, &net.Dialer{}).Deliver(t.Context(), messageTo(r.URL))
			if kinds(err) != test.want {
				t.Errorf("%d: error is %v, want kind %q", status, err, test.want)
			}
			if d, ok := errors.AsType[*webhook.DeliveryError](err); ok && (d.StatusCode != status || d.RetryAfter != test.after) {
				t.Errorf("%d, %s: status code is %d, again after %s", status, test.header, d.StatusCode, d.RetryAfter)
			}
			if len(r.got()) != 1 || elsewhere.dialed.Load() != 0 {
				t.Errorf("%d: %d requests and %d connections elsewhere, want 1 and 0", status, len(r.got()), elsewhere.dialed.Load())
			}
		}
	}
}

// No receiver holds a delivery, or its connection, for longer than its time-out, and no error quotes
// the target.
func TestDeliver_isBoundedByItsTimeout(t *testing.T) {
	testrun.Long(t, "it waits for time-outs")
	t.Parallel()
	for name, tc := range map[string]struct {
		scheme      string
		sent, again string // what is sent, and then for ever
		closes      bool
		want        string
	}{
		"silence":                      {"http", "", "", false, "delivery"},
		"a handshake that hangs":       {"https", "", "", false, "delivery"},
		"headers without end":          {"http", "HTTP/1.1 200 OK\r\n", "X-More: and more\r\n", false, "delivery"},
		"interim answers without end":  {"http", "", "HTTP/1.1 103 Early Hints\r\nX: " + strings.Repeat("x", 1000) + "\r\n\r\n", false, "delivery"},
		"a body that never comes":      {"http", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "", false, ""},
		"a body without end":           {"http", "HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("x", 1000), false, ""},
		"a long line that is not HTTP": {"http", strings.Repeat("x", 50_000) + "\r\n\r\n", "", true, "delivery"},
		"a cut":                        {"http", "", "", true, "delivery"},
		"a refused connection":         {"http", "", "", false, "delivery"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			testdb.Must(t, err)
			at := listener.Addr().String()
			if name == "a refused connection" {
				testdb.Must(t, listener.Close())
				at = "127.0.0.1:1" // the port that is free now may be another test's next
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = listener.Close() }()
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer func() { _ = conn.Close() }()
				request, err := http.ReadRequest(bufio.NewReader(conn)) // which a handshake is not
				if err == nil {
					_, err = io.Copy(io.Discard, request.Body)
				}
				for text := tc.sent; err == nil && text != ""; text = tc.again {
					_, err = io.WriteString(conn, text)
				}
				if !tc.closes {
					_, _ = io.Copy(io.Discard, conn)
				}
			}()
			timeout := 300 * time.Millisecond
			if tc.want == "" { // a busy machine is late with the status
				timeout = 5 * time.Second
			}
			target := tc.scheme + "://" + at + "?token=hush"
			err = newSender(t, webhook.Config{AllowCIDRs: loopback(), Timeout: timeout}, &net.Dialer{}).Deliver(t.Context(), messageTo(target))
			if kinds(err) != tc.want {
				t.Errorf("error is %v, want kind %q", err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "127.0.0.1") || len(err.Error()) > 500) {
				t.Errorf("the error quotes the target, or the receiver: %v", err)
			}
			testrun.Receive(t, "the end of the connection", ended)
		})
	}
}

func TestDeliver_verifiesTheCertificate(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, nil)
	r.StartTLS()
	untrusting := newSender(t, webhook.Config{AllowCIDRs: loopback()}, &net.Dialer{})
	if err := untrusting.Deliver(t.Context(), messageTo(r.URL)); kinds(err) != "delivery" || len(r.got()) != 0 {
		t.Errorf("unknown certificate: %v after %d deliveries, want a delivery error and none", err, len(r.got()))
	}
	trusting := newSender(t, webhook.Config{AllowCIDRs: loopback()}, &net.Dialer{})
	roots := x509.NewCertPool()
	roots.AddCert(r.Certificate())
	trusting.Trust(roots)
	if err := trusting.Deliver(t.Context(), messageTo(r.URL)); err != nil || len(r.got()) != 1 {
		t.Errorf("known certificate: %v after %d deliveries, want one", err, len(r.got()))
	}
	z := newZone(map[string][]string{"wrong.shop.test": {"127.0.0.1"}})
	other := newSender(t, webhook.Config{AllowCIDRs: loopback()}, &net.Dialer{Resolver: z.resolver()})
	other.Trust(roots)
	wrong := strings.Replace(r.URL, "127.0.0.1", "wrong.shop.test", 1)
	if err := other.Deliver(t.Context(), messageTo(wrong)); kinds(err) != "delivery" || len(r.got()) != 1 {
		t.Errorf("a certificate of another host: %v after %d deliveries, want a delivery error and no more", err, len(r.got()))
	}
}

// TestDeliver_signsByEverySecretInOrder, each delivery with its time, under the same id.
func TestDeliver_signsByEverySecretInOrder(t *testing.T) {
	t.Parallel()
	const older, oldest = "whsec_b2xkZXItc2VjcmV0LW9mLXRoZS1zaG9w", "whsec_b2xkZXN0LXNlY3JldC1vZi10aGUtc2hvcA=="
	for name, test := range map[string]struct {
		secrets []string
		want    []string // the secrets that verify it, in this order
	}{
		"one":                            {[]string{secret}, []string{secret}},
		"two":                            {[]string{secret, older}, []string{secret, older}},
		"three":                          {[]string{older, secret, oldest}, []string{older, secret, oldest}},
		"one that signs nothing, beside": {[]string{"whsec_hush!", older}, []string{older}},
		"one that is empty, beside":      {[]string{older, "whsec_"}, []string{older}},
	} {
		r := startReceiver(t, nil)
		w := messageTo(r.URL)
		w.Secrets = test.secrets
		age := time.Hour
		s := newSender(t, webhook.Config{AllowCIDRs: loopback(), Now: func() time.Time { return time.Now().Add(-age) }}, &net.Dialer{})
		for ; age >= 0; age -= time.Hour {
			testdb.Must(t, s.Deliver(t.Context(), w))
		}
		old, got := r.got()[0], r.got()[1]
		list := strings.Split(got.header.Get("webhook-signature"), " ")
		if len(list) != len(test.want) || string(got.body) != body || old.header.Get("webhook-id") != got.header.Get("webhook-id") || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: received %s with %v", name, got.body, got.header)
			continue
		}
		for i, by := range test.want {
			v, err := standardwebhooks.NewWebhook(by)
			testdb.Must(t, err)
			alone := got.header.Clone()
			alone.Set("webhook-signature", list[i])
			if err := cmp.Or(v.Verify(got.body, got.header), v.Verify(got.body, alone)); err != nil {
				t.Errorf("%s: signature %d, %q, is not by secret %d: %v", name, i, list[i], i, err)
			}
			if v.VerifyIgnoringTimestamp(old.body, old.header) != nil || v.Verify(old.body, old.header) == nil {
				t.Errorf("%s: the delivery of an hour ago has %v, want its time", name, old.header)
			}
		}
	}
}

// TestDeliver_refusesWhatItCannotSign, before it connects, as CheckSecret does at registration.
func TestDeliver_refusesWhatItCannotSign(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, nil)
	s := newSender(t, webhook.Config{AllowCIDRs: loopback()}, &net.Dialer{})
	refused := func(err error) {
		t.Helper()
		if kinds(err) != "target" || strings.Contains(err.Error(), "hush") {
			t.Errorf("%v, want it refused without the secret in the text", err)
		}
	}
	for _, bad := range []string{
		"", "whsec_", "whsec_hush!", "hush", "aHVzaA==", " " + secret, secret + "\n", "WHSEC_aHVzaA==", "whsec_aHVzaA", "whsec_aHVzaA==",
	} {
		refused(webhook.CheckSecret(bad))
	}
	testdb.Must(t, webhook.CheckSecret(secret))
	for _, w := range []webhook.Message{
		{URL: r.URL, ID: "evt_1"},
		{URL: r.URL, ID: "evt_1", Secrets: []string{"whsec_hush!"}},
		{URL: r.URL, Secrets: []string{secret}},
		{URL: r.URL, Secrets: []string{secret}, ID: "evt\r\nX: y"},
	} {
		refused(s.Deliver(t.Context(), w))
	}
	if got := r.dialed.Load(); got != 0 {
		t.Errorf("%d connections, want none", got)
	}
}

func TestDeliver_returnsTheErrorOfItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	r := startReceiver(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	s := newSender(t, webhook.Config{AllowCIDRs: loopback()}, &net.Dialer{})
	for range 2 { // the second is not sent
		if err := s.Deliver(ctx, messageTo(r.URL)); kinds(err) != "context" || len(r.got()) != 1 {
			t.Errorf("%v after %d requests, want the context's error and one", err, len(r.got()))
		}
	}
}
