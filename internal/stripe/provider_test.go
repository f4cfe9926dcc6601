package stripe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

const (
	secretKey = "sk_test_neverprinted"
	// noServer is where no server listens and none will: the port of a closed one may be another test's next.
	noServer = "http://127.0.0.1:1"
)

// provider is a scripted provider: it answers every request with one handler
// and keeps what was sent.
type provider struct {
	*httptest.Server
	mu   sync.Mutex
	sent []sent
}

type sent struct {
	Request string
	Form    url.Values
	Key     string
}

func newProvider(tb testing.TB, answer http.HandlerFunc) *provider {
	tb.Helper()
	p := &provider{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		for name, values := range r.Form {
			if slices.Contains(values, "") {
				tb.Errorf("%s %s: %s is empty, which Stripe refuses", r.Method, r.URL.Path, name)
			}
		}
		p.mu.Lock()
		p.sent = append(p.sent, sent{r.Method + " " + r.URL.Path, r.Form, r.Header.Get("Idempotency-Key")})
		p.mu.Unlock()
		answer(w, r)
	}))
	tb.Cleanup(p.Close)
	return p
}

func (p *provider) got() []sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}

// requests is how many were sent.
func (p *provider) requests() int { return len(p.got()) }

func newClient(tb testing.TB, base string, timeout time.Duration) *stripe.Client {
	tb.Helper()
	c, err := stripe.New(stripe.Config{SecretKey: secretKey, Base: base, Timeout: timeout})
	testrun.Must(tb, err)
	tb.Cleanup(c.Close)
	return c
}

// intentJSON is the intent pi_1 of charge ch_1, changed by the pairs.
func intentJSON(pairs ...any) string {
	return object(map[string]any{
		"id": "pi_1", "object": "payment_intent", "status": "requires_confirmation",
		"amount": 1999, "amount_received": 0, "currency": "eur", "created": 1700000000,
		"metadata": map[string]any{"charge_reference": "ch_1"}, "client_secret": "pi_1_secret_neverprinted",
		"last_payment_error": nil, "latest_charge": nil,
	}, pairs...)
}

// refundJSON is the refund re_1 of pi_1, changed by the pairs.
func refundJSON(pairs ...any) string {
	return object(map[string]any{
		"id": "re_1", "object": "refund", "status": "succeeded", "amount": 500, "currency": "eur",
		"payment_intent": "pi_1", "metadata": map[string]any{"refund_id": "re_ours"},
	}, pairs...)
}

// errorJSON is an error in the provider's form.
func errorJSON(kind, code string, pairs ...any) string {
	inner := object(map[string]any{"type": kind, "code": code, "message": "for people"}, pairs...)
	return `{"error":` + inner + `}`
}

func object(o map[string]any, pairs ...any) string {
	for i := 0; i+1 < len(pairs); i += 2 {
		o[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// answer is a handler that sends this status, body and headers.
func answer(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Request-Id", "req_1")
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// cut is a handler that sends raw bytes, if any, and closes the connection.
func cut(raw string) http.HandlerFunc { return sends(raw, func(net.Conn) {}) }

// stall is a handler that sends raw bytes, if any, and then nothing more until
// the client has gone.
func stall(raw string) http.HandlerFunc {
	return sends(raw, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
}

func sends(raw string, wait func(net.Conn)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = conn.Write([]byte(raw))
		wait(conn)
		_ = conn.Close()
	}
}

// calls returns all calls of the client, each reduced to whether its value is zero,
// and its error.
func calls(c *stripe.Client) map[string]func(context.Context) (zero bool, err error) {
	return map[string]func(context.Context) (bool, error){
		"create": func(ctx context.Context) (bool, error) {
			return isZero(c.CreateIntent(ctx, "key_1", createParams("pm_card_visa")))
		},
		"confirm":  func(ctx context.Context) (bool, error) { return isZero(c.ConfirmIntent(ctx, "key_1", "pi_1", "")) },
		"retrieve": func(ctx context.Context) (bool, error) { return isZero(c.RetrieveIntent(ctx, "pi_1")) },
		"cancel":   func(ctx context.Context) (bool, error) { return isZero(c.CancelIntent(ctx, "pi_1")) },
		"create refund": func(ctx context.Context) (bool, error) {
			return isZero(c.CreateRefund(ctx, "key_1", refundParams("pi_1")))
		},
		"intents":               func(ctx context.Context) (bool, error) { return first(c.Intents(ctx)) },
		"refunds":               func(ctx context.Context) (bool, error) { return first(c.Refunds(ctx, "")) },
		"disputes":              func(ctx context.Context) (bool, error) { return first(c.Disputes(ctx, "")) },
		"disputes of an intent": func(ctx context.Context) (bool, error) { return first(c.Disputes(ctx, "pi_1")) },
		"refunds of an intent":  func(ctx context.Context) (bool, error) { return first(c.Refunds(ctx, "pi_1")) },
	}
}

func isZero[T comparable](value T, err error) (bool, error) { return value == *new(T), err }

func createParams(method string) stripe.CreateParams {
	return stripe.CreateParams{Reference: "ch_1", Amount: 1999, Currency: "EUR", PaymentMethod: method, Description: "order 7"}
}

func refundParams(intent string) stripe.RefundParams {
	return stripe.RefundParams{Reference: "re_ours", PaymentIntent: intent, Amount: 500, Currency: "EUR"}
}

func first[T any](seq iter.Seq2[T, error]) (zero bool, err error) {
	var none T
	for v, err := range seq {
		return reflect.DeepEqual(v, none), err
	}
	return true, nil
}

// collect returns what a list had before its end, and the error that ended it.
func collect[T any](seq iter.Seq2[T, error]) (all []T, err error) {
	for v, err := range seq {
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
	return all, nil
}

// kind names the kind of an error, which a context's error is not beside.
func kind(err error) string {
	e, ok := errors.AsType[*stripe.Error](err)
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case err == nil:
		return ""
	case ok && !ended:
		return string(e.Kind)
	case ended && !ok:
		return "context"
	}
	return fmt.Sprint(err)
}
