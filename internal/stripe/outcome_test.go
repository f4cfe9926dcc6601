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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testrun"
)

const html = "<html><body>502 Bad Gateway</body></html>"

type outcome struct {
	answer http.HandlerFunc
	want   string // its classification
}

// outcomes returns everything that can come back instead of a success.
func outcomes() map[string]outcome {
	card := errorJSON("card_error", "card_declined", "decline_code", "insufficient_funds",
		"payment_intent", map[string]any{
			"id": "pi_1", "object": "payment_intent", "status": "requires_payment_method", "amount": 1999, "currency": "eur",
			"client_secret": "pi_1_secret_neverprinted",
		})
	invalid := errorJSON("invalid_request_error", "resource_missing")
	api := errorJSON("api_error", "")
	saved := []string{"Idempotent-Replayed", "true"}
	return map[string]outcome{
		"a declined card":                       {answer(402, card), "declined"},
		"a decline that leaves the intent out":  {answer(402, errorJSON("card_error", "card_declined")), "declined"},
		"a decline with an intent in rags":      {answer(402, errorJSON("card_error", "card_declined", "payment_intent", map[string]any{})), "declined"},
		"an invalid request":                    {answer(400, invalid), "rejected"},
		"a refusal with 402 that is no decline": {answer(402, errorJSON("invalid_request_error", "balance_insufficient")), "rejected"},

		"an internal error":              {answer(500, api), "failed"},
		"a service unavailable, saved":   {answer(503, api, saved...), "failed"},
		"a first service unavailable":    {answer(503, api), "unavailable"},
		"a key in flight":                {answer(409, errorJSON("idempotency_error", "idempotency_key_in_use")), "unavailable"},
		"a key with other parameters":    {answer(400, errorJSON("idempotency_error", "")), "failed"},
		"a conflict of another kind":     {answer(409, errorJSON("invalid_request_error", "lock_timeout")), "unavailable"},
		"too many requests":              {answer(429, errorJSON("invalid_request_error", "rate_limit")), "unavailable"},
		"an intent locked by another":    {answer(429, errorJSON("invalid_request_error", "lock_timeout")), "unavailable"},
		"a secret key that is not known": {answer(401, errorJSON("invalid_request_error", "", "message", "Invalid key: "+secretKey)), "needs an operator"},
		"a secret key that may not":      {answer(403, errorJSON("invalid_request_error", "")), "needs an operator"},
		"a test key for a live object": {answer(404, errorJSON("invalid_request_error", "resource_missing", "message",
			"No such PaymentMethod: 'pm_1'; a similar object exists in live mode, but a test mode key was used to make this request.")), "needs an operator"},
		"a test key for a live card": {answer(402, errorJSON("card_error", "card_declined", "decline_code", "test_mode_live_card")), "needs an operator"},
		"a live key for a test object": {answer(404, errorJSON("invalid_request_error", "resource_missing", "message",
			"No such PaymentMethod: 'pm_1'; a similar object exists in test mode, but a live mode key was used to make this request.")), "rejected"},
		"a live key for a test card":    {answer(402, errorJSON("card_error", "card_declined", "decline_code", "live_mode_test_card")), "declined"},
		"an account that is not active": {answer(400, errorJSON("invalid_request_error", "testmode_charges_only")), "needs an operator"},
		"advice to retry at once":       {answer(409, errorJSON("idempotency_error", ""), "Stripe-Should-Retry", "true"), "unavailable"},

		"a gateway's page":                  {answer(502, html), "unavailable"},
		"a page with 200":                   {answer(200, html), "unavailable"},
		"a proxy's JSON with 500":           {answer(500, `{"message":"pi_1_secret_neverprinted"}`), "unavailable"},
		"an error without a type":           {answer(400, `{"error":{"message":"no"}}`), "unavailable"},
		"an empty object":                   {answer(200, `{}`), "unavailable"},
		"no content":                        {answer(204, ``), "unavailable"},
		"another object":                    {answer(200, `{"object":"charge","id":"pi_1","currency":"eur"}`), "unavailable"},
		"an error that claims to be fine":   {answer(200, card), "unavailable"},
		"a redirect":                        {answer(302, ``, "Location", "/v1/payment_intents"), "unavailable"},
		"a redirect with an intent":         {answer(302, intentJSON(), "Location", "/v1/payment_intents"), "unavailable"},
		"half an intent":                    {answer(200, intentJSON()[:150]), "unavailable"},
		"an endless answer":                 {answer(200, strings.Repeat(" ", 9<<20)), "unavailable"},
		"a cut":                             {cut(""), "unavailable"},
		"a cut in the body":                 {cut("HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + intentJSON()[:150]), "unavailable"},
		"a cut in the body of an error":     {cut("HTTP/1.1 402 Payment Required\r\nContent-Length: 9000\r\n\r\n" + card), "unavailable"},
		"silence":                           {stall(""), "unavailable"},
		"silence in the middle of the body": {stall("HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"), "unavailable"},
	}
}

// Each call on each answer returns an error of exactly one kind with no secret in
// its text and the zero value beside it, and sends one request.
func TestCall_classifiesEveryAnswer(t *testing.T) {
	t.Parallel()
	for name, o := range outcomes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var timeout time.Duration
			if strings.HasPrefix(name, "silence") {
				testrun.Long(t, "it waits for time-outs")
				timeout = 100 * time.Millisecond
			}
			shared := newProvider(t, o.answer)
			for call := range calls(nil) {
				p := shared
				if timeout > 0 { // a late request counts where it was sent
					p = newProvider(t, o.answer)
				}
				before := p.requests()
				zero, err := calls(newClient(t, p.URL, timeout))[call](t.Context())
				for timeout > 0 && p.requests() == before { // it timed out before its request arrived
					p, before = newProvider(t, o.answer), 0
					zero, err = calls(newClient(t, p.URL, timeout))[call](t.Context())
				}
				if got := kind(err); got != o.want {
					t.Errorf("%s: error is %q, want %q: %v", call, got, o.want, err)
				}
				if !zero {
					t.Errorf("%s: returned a value beside the error", call)
				}
				if got := p.requests() - before; got != 1 {
					t.Errorf("%s: %d requests, want 1", call, got)
				}
				if err != nil && strings.Contains(err.Error(), "neverprinted") {
					t.Errorf("%s: the error holds a secret: %v", call, err)
				}
			}
		})
	}
}

// What is kept of the provider's texts fits into a jsonb value: JSON allows a NUL and any length.
func TestErrors_carryWhatTheProviderSays(t *testing.T) {
	t.Parallel()
	intent := map[string]any{
		"id": "pi_1", "object": "payment_intent", "status": "requires_payment_method", "amount": 1999, "currency": "eur",
		"metadata": map[string]any{"charge_reference": "ch_1"}, "latest_charge": "ch_provider", "created": 1700000000,
		"last_payment_error": map[string]any{"type": "card_error", "code": "card_declined", "message": "for people"},
	}
	want := stripe.Intent{
		ID: "pi_1", Status: stripe.RequiresPaymentMethod, Amount: 1999, Currency: "EUR", Reference: "ch_1", Attempted: true,
		Decline: &stripe.Decline{Code: "card_declined", Message: "for people"}, Created: time.Unix(1700000000, 0).UTC(),
	}
	why := func(code, decline, message string) stripe.Decline {
		return stripe.Decline{Code: code, DeclineCode: decline, Message: message}
	}
	type said struct {
		answer http.HandlerFunc
		want   stripe.Error
	}
	limited := func(retryAfter string, want time.Duration) said {
		return said{
			answer(429, errorJSON("invalid_request_error", "rate_limit"), "Retry-After", retryAfter),
			stripe.Error{Kind: stripe.Unavailable, StatusCode: 429, RequestID: "req_1", Why: why("rate_limit", "", "for people"), RetryAfter: want},
		}
	}
	for name, tc := range map[string]said{
		"decline": {
			answer(402, errorJSON("card_error", "card_declined", "decline_code", "insufficient_funds", "payment_intent", intent)),
			stripe.Error{Kind: stripe.Declined, StatusCode: 402, RequestID: "req_1", Why: why("card_declined", "insufficient_funds", "for people"), Intent: want},
		},
		"long texts": {
			answer(402, errorJSON("card_error", "card_declined", "decline_code", "a\x00b", "message", "\x00x"+strings.Repeat("é", 400))),
			stripe.Error{Kind: stripe.Declined, StatusCode: 402, RequestID: "req_1", Why: why("card_declined", "ab", "x"+strings.Repeat("é", 249))},
		},
		"rejection": {
			answer(400, errorJSON("invalid_request_error", "resource_missing", "payment_intent", intent)),
			stripe.Error{Kind: stripe.Rejected, StatusCode: 400, RequestID: "req_1", Why: why("resource_missing", "", "for people"), Intent: want},
		},
		"Retry-After in seconds": limited("7", 7*time.Second), "in years": limited("99999999999", 10*time.Minute),
		"less than nothing": limited("-5", 0), "nothing": limited("", 0),
		"on a page of others": {
			answer(503, html, "Retry-After", "3"),
			stripe.Error{Kind: stripe.Unavailable, Why: why("", "", "answer 503 was cut or is not in the form of the provider's API")},
		},
		"on a strange answer": {
			answer(200, `{}`, "Retry-After", "2"), stripe.Error{Kind: stripe.Unavailable, Why: why("", "", "the answer holds no payment_intent")},
		},
	} {
		_, err := newClient(t, newProvider(t, tc.answer).URL, 0).ConfirmIntent(t.Context(), "key_1", "pi_1", "")
		testrun.Same(t, name, error(&tc.want), errors.Unwrap(err))
	}
}

func TestDecline_AuthenticationRequired(t *testing.T) {
	t.Parallel()
	for d, want := range map[stripe.Decline]bool{
		{Code: "authentication_required"}: true, {Code: "card_declined", DeclineCode: "authentication_required"}: true,
		{Code: "requires_action_not_handled"}: true, {Code: "card_declined", DeclineCode: "insufficient_funds"}: false, {}: false,
	} {
		if got := d.AuthenticationRequired(); got != want {
			t.Errorf("%+v: %t, want %t", d, got, want)
		}
	}
}

// A call that is given up returns the context's own error; a refused connection does not.
func TestCall_returnsItsContextsError(t *testing.T) {
	t.Parallel()
	stalled, unasked := newProvider(t, stall("")), newProvider(t, stall(""))
	c := newClient(t, stalled.URL, 0)
	for call, run := range calls(c) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		if _, err := run(ctx); kind(err) != "context" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want the context's error", call, err)
		}
		cancel()
		if _, err := calls(newClient(t, unasked.URL, 0))[call](ctx); kind(err) != "context" || unasked.requests() != 0 {
			t.Errorf("%s: %v after %d requests, want none under a context that has ended", call, err, unasked.requests())
		}
		if _, err := calls(newClient(t, noServer, 0))[call](t.Context()); kind(err) != "unavailable" {
			t.Errorf("%s: %v, want unavailable", call, err)
		}
	}
}

func TestAccount(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   stripe.Account
		kind   string
	}{
		"an account":                {answer(200, `{"object":"account","id":"acct_1"}`), stripe.Account{ID: "acct_1"}, ""},
		"another object":            {answer(200, intentJSON()), stripe.Account{}, "unavailable"},
		"a server without accounts": {answer(404, errorJSON("invalid_request_error", "")), stripe.Account{ID: "none"}, ""},
		"a page with 404":           {answer(404, html), stripe.Account{}, "unavailable"},
		"a key that is refused":     {answer(401, errorJSON("invalid_request_error", "")), stripe.Account{}, "needs an operator"},
	} {
		c := newClient(t, newProvider(t, test.answer).URL, 0)
		got, err := c.Account(t.Context())
		if got != test.want || kind(err) != test.kind || (c.Blocked() != "") != (test.kind == "needs an operator") {
			t.Errorf("%s: %+v, %v, want %+v and %q; it is blocked by %q", name, got, err, test.want, test.kind, c.Blocked())
		}
	}
}

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
