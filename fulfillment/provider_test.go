package fulfillment_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
)

// provider answers as its script says, and passes the other calls to the sandbox behind it.
type provider struct {
	*httptest.Server

	sandbox http.Handler // nil: a call that is not in the script is a mistake

	mu     sync.Mutex
	script script
	calls  []call
	taken  int // of the calls
	fault  fault

	ahead atomic.Int64       // of the sandbox's clock
	late  chan *http.Request // a call that is executed after its client stopped waiting
}

type call struct{ op, intent, key string }

// fault is what happens at one of the next calls.
type fault struct {
	at     int // counted from 1
	answer http.HandlerFunc
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{script: script{}, late: make(chan *http.Request, 1)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callOf(r)
		answer := p.answer(c)
		if answer == nil {
			t.Errorf("the provider was called to %s %s, which is not in its script", c.op, c.intent)
			answer = says(http.StatusTeapot, "")
		}
		answer(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func callOf(r *http.Request) call {
	c := call{key: r.Header.Get("Idempotency-Key")}
	if r.URL.Path == "/v1/refunds" {
		c.op = "refund"
		if r.Method == http.MethodGet {
			c.op, c.intent = "refunds", r.URL.Query().Get("payment_intent")
		}
		return c
	}
	if object, id, single := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), "/"); single && object != "payment_intents" {
		return call{op: object + "/id", intent: id}
	}
	if r.URL.Path == "/v1/disputes" {
		return call{op: "disputes", intent: r.URL.Query().Get("payment_intent")}
	}
	path := strings.TrimPrefix(r.URL.Path, "/v1/payment_intents")
	c.intent, c.op, _ = strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case r.Method == http.MethodGet:
		c.op = "retrieve"
	case path == "":
		c.op = "create"
	}
	return c
}

func (p *provider) answer(c call) http.HandlerFunc {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, c)
	if p.fault.at--; p.fault.at == 0 {
		return p.fault.answer
	}
	if answers := p.script[c.op]; len(answers) > 0 {
		p.script[c.op] = answers[1:]
		return answers[0]
	}
	if p.sandbox != nil {
		return p.sandbox.ServeHTTP
	}
	return nil
}

// on adds answers to the script, one for each call of an operation.
func (p *provider) on(op string, answers ...http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script[op] = append(p.script[op], answers...)
}

// expect sets the fault of the calls from now on.
func (p *provider) expect(next fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = next
}

// take returns the operations of the calls since the last time.
func (p *provider) take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var ops []string
	for _, c := range p.calls[p.taken:] {
		ops = append(ops, c.op)
	}
	p.taken = len(p.calls)
	return strings.Join(ops, " ")
}

// keys are the idempotency keys of all calls of an operation.
func (p *provider) keys(op string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var keys []string
	for _, c := range p.calls {
		if c.op == op {
			keys = append(keys, c.key)
		}
	}
	return keys
}

// says is an answer with this status, body and headers.
func says(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Request-Id", "req_provider")
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// shows is an answer with the payment intent in this state.
func shows(status string, pairs ...any) http.HandlerFunc {
	return says(http.StatusOK, intent(status, pairs...))
}

// cut closes the connection without an answer.
func cut(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
}

// cutAfter executes the call at the sandbox and loses its answer.
func (p *provider) cutAfter(w http.ResponseWriter, r *http.Request) {
	p.sandbox.ServeHTTP(httptest.NewRecorder(), r)
	cut(w, r)
}

// breaksAfter executes the call at the sandbox and answers with an error of the provider's.
func (p *provider) breaksAfter(w http.ResponseWriter, r *http.Request) {
	p.sandbox.ServeHTTP(httptest.NewRecorder(), r)
	breaks()(w, r)
}

// meanwhile runs what happens while the call is in flight.
func meanwhile(happens func(), answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		happens()
		answer(w, r)
	}
}

// cutBefore closes the connection and keeps the call for executeLate.
func (p *provider) cutBefore(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	late := r.Clone(context.WithoutCancel(r.Context()))
	late.Body = io.NopCloser(bytes.NewReader(body))
	p.late <- late
	cut(w, r)
}

// executeLate executes the call that cutBefore kept at the sandbox.
func (p *provider) executeLate(t *testing.T) {
	t.Helper()
	p.sandbox.ServeHTTP(httptest.NewRecorder(), await.Receive(t, "the call whose connection was cut", p.late))
}

// beforeEffect answers, and then executes the call that cutBefore kept.
func (p *provider) beforeEffect(t *testing.T) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		p.sandbox.ServeHTTP(w, r)
		p.executeLate(t)
	}
}

// intent is the payment intent pi_1 of the charge ch_1, changed by the pairs.
func intent(status string, pairs ...any) string {
	o := map[string]any{
		"id": "pi_1", "object": "payment_intent", "status": status,
		"amount": 1999, "amount_received": 0, "currency": "eur", "created": 1700000000,
		"metadata": map[string]any{"charge_reference": "ref_ch_1"}, "last_payment_error": nil, "latest_charge": nil,
	}
	if status == "succeeded" {
		o["amount_received"], o["latest_charge"] = 1999, "py_1"
	}
	return object(o, pairs...)
}

// attempted are the pairs of an intent that was declined.
func attempted(code, declineCode string) []any {
	return []any{"latest_charge", "py_1", "last_payment_error", map[string]any{
		"type": "card_error", "code": code, "decline_code": declineCode, "message": "no money",
	}}
}

// refundOf is the provider's refund rp_1 of 600 for our re_1, changed by the
// pairs.
func refundOf(status string, pairs ...any) json.RawMessage {
	return json.RawMessage(object(map[string]any{
		"id": "rp_1", "object": "refund", "status": status, "amount": 600, "currency": "eur",
		"payment_intent": "pi_1", "metadata": map[string]any{"refund_id": "re_1"},
	}, pairs...))
}

// gives is an answer with the refund in this state.
func gives(status string, pairs ...any) http.HandlerFunc {
	return says(http.StatusOK, string(refundOf(status, pairs...)))
}

// lists is an answer with these refunds.
func lists(refunds ...json.RawMessage) http.HandlerFunc {
	if refunds == nil {
		refunds = []json.RawMessage{}
	}
	return says(http.StatusOK, object(map[string]any{
		"object": "list", "url": "/v1/refunds", "has_more": false, "data": refunds,
	}))
}

// refuses is an error answer in the provider's form.
func refuses(status int, kind, code string, pairs ...any) http.HandlerFunc {
	inner := object(map[string]any{"type": kind, "code": code, "message": "for people"}, pairs...)
	return says(status, `{"error":`+inner+`}`)
}

func declines() http.HandlerFunc {
	return refuses(http.StatusPaymentRequired, "card_error", "card_declined", "decline_code", "insufficient_funds",
		"payment_intent", json.RawMessage(intent("requires_payment_method", attempted("card_declined", "insufficient_funds")...)))
}

// unexpected refuses a call that the state of the intent does not allow.
func unexpected(status string) http.HandlerFunc {
	return refuses(http.StatusBadRequest, "invalid_request_error", "payment_intent_unexpected_state",
		"payment_intent", json.RawMessage(intent(status)))
}

func breaks() http.HandlerFunc {
	return refuses(http.StatusInternalServerError, "api_error", "")
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

// useSandbox puts a Stripe-compatible provider with records of its own behind the script.
func (f *fixture) useSandbox() {
	f.t.Helper()
	f.provider.useSandbox(f.t)
}

func (p *provider) useSandbox(t *testing.T) {
	t.Helper()
	now := func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }
	sb, err := sandbox.New(sandbox.Options{Now: now, ProcessingTime: time.Millisecond})
	testdb.Must(t, err)
	t.Cleanup(sb.Drain)
	p.sandbox = sb
}

// forgetKeys lets the time pass after which the provider forgets its keys.
func (p *provider) forgetKeys() { p.ahead.Add(int64(25 * time.Hour)) }

// control sends a request that is not a client's to the sandbox.
func (p *provider) control(t interface{ Fatalf(string, ...any) }, method, path, body string) []byte {
	answered := httptest.NewRecorder()
	p.sandbox.ServeHTTP(answered, httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body)))
	if answered.Code/100 != 2 {
		t.Fatalf("%s %s: answered %d", method, path, answered.Code)
	}
	return answered.Body.Bytes()
}

// records are what the sandbox says that it executed.
type records struct {
	Intents []struct {
		Reference string `json:"reference"`
		Status    string `json:"status"`
	} `json:"intents"`
	Captures []movement `json:"captures"`
	Refunds  []movement `json:"refunds"`
}

// movement is money that the provider captured or refunded, by our name for it.
type movement struct {
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
}

func (p *provider) records(t interface{ Fatalf(string, ...any) }) (r records) {
	if err := json.Unmarshal(p.control(t, http.MethodGet, "/books", ""), &r); err != nil {
		t.Fatalf("read the sandbox's records: %v", err)
	}
	return r
}

func (f *fixture) expectCaptures(want int) {
	f.t.Helper()
	captures := f.provider.records(f.t).Captures
	if len(captures) != want || want > 0 && captures[0].Amount != 1999 {
		f.t.Errorf("the provider's captures are %+v, want %d", captures, want)
	}
}

// Faults of the sandbox. The seeds are such that the first draw fails before the effect, or
// after it; either way the sandbox saves the 500 under the key.
const (
	noFault     = `{}`
	forgetsKeys = `{"forget_keys_after": "0s"}`
	failsBefore = `{"seed": 4, "error_500": 1}`
	failsAfter  = `{"seed": 1, "error_500": 1}`
)

// under has the sandbox answer one call under faults.
func (p *provider) under(faults string, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p.control(panics{}, http.MethodPut, "/faults", faults)
		defer p.control(panics{}, http.MethodDelete, "/faults", "")
		answer(w, r)
	}
}

type panics struct{}

func (panics) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
