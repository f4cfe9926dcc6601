package fulfillment_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
)

// provider is the sandbox, with a fault at one call.
type provider struct {
	*httptest.Server

	sandbox http.Handler

	mu    sync.Mutex
	fault fault

	ahead atomic.Int64    // of the sandbox's clock
	late  []*http.Request // calls that are executed after their clients stopped waiting
}

// fault is what happens at one of the next calls, counted from 1.
type fault struct {
	at     int
	answer http.HandlerFunc
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.answer()(w, r)
	}))
	t.Cleanup(p.Close)
	now := func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }
	sb, err := sandbox.New(t.Context(), sandbox.Options{Now: now, ProcessingTime: time.Millisecond})
	testdb.Must(t, err)
	p.sandbox = sb
	return p
}

// newClient waits so long for an answer of the provider, or longer than in production: a busy machine is late.
func newClient(t *testing.T, base string) *stripe.Client {
	t.Helper()
	client, err := stripe.New(stripe.Config{SecretKey: "sk_test_1", Base: base, Timeout: time.Minute})
	testdb.Must(t, err)
	t.Cleanup(client.Close)
	return client
}

func (p *provider) answer() http.HandlerFunc {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault.at--; p.fault.at == 0 {
		return p.fault.answer
	}
	return p.sandbox.ServeHTTP
}

// expect sets the fault of the calls from now on.
func (p *provider) expect(next fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = next
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

// executedThen executes the call at the sandbox, and answers after what happens then.
func (p *provider) executedThen(happens func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answered := httptest.NewRecorder()
		p.sandbox.ServeHTTP(answered, r)
		happens()
		w.WriteHeader(answered.Code)
		_, _ = answered.Body.WriteTo(w)
	}
}

// meanwhile runs what happens while the call is in flight.
func meanwhile(happens func(), answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		happens()
		answer(w, r)
	}
}

// cutLate closes the connection and keeps the call for executeLate.
func (p *provider) cutLate(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	late := r.Clone(context.WithoutCancel(r.Context()))
	late.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	p.late = append(p.late, late)
	p.mu.Unlock()
	cut(w, r)
}

// executeLate executes the calls that cutLate kept, all of them or those about refunds, at the sandbox.
func (p *provider) executeLate(refundsAlone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = slices.DeleteFunc(p.late, func(r *http.Request) bool {
		if refundsAlone && !strings.HasSuffix(r.URL.Path, "/refunds") {
			return false
		}
		p.sandbox.ServeHTTP(httptest.NewRecorder(), r)
		return true
	})
}

// forgetKeys lets the time pass after which the provider forgets its keys. No refund is in flight for so long:
// see Limits in docs/reference/provider.md.
func (p *provider) forgetKeys() {
	p.executeLate(true)
	p.ahead.Add(int64(25 * time.Hour))
}

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
func (p *provider) records(t interface{ Fatalf(string, ...any) }) (r harness.Books) {
	if err := json.Unmarshal(p.control(t, http.MethodGet, "/books", ""), &r); err != nil {
		t.Fatalf("read the sandbox's records: %v", err)
	}
	return r
}

// Faults of the sandbox. The seeds are such that the first draw fails before the effect, or after it; either
// way the sandbox saves the 500 under the key.
const (
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

// sandboxed is a memory whose provider is the sandbox, with its own records of the money.
type sandboxed struct {
	*memory

	provider *provider
	client   *stripe.Client
}

func newSandboxed(t *testing.T, first domain.ChargeRequested) *sandboxed {
	t.Helper()
	p := newProvider(t)
	client := newClient(t, p.URL)
	return &sandboxed{newMemory(t, fulfillment.Services{Provider: client, ActionTimeout: time.Hour}, first), p, client}
}

// ends delivers the message about the newest request, and checks how each delivery ends.
func (s *sandboxed) ends(want ...string) {
	s.t.Helper()
	for _, end := range want {
		if err := s.deliver(""); endOf(err) != end {
			s.t.Errorf("the handler returned %v, want %s", err, end)
		}
	}
}

// TestResentKey: a database has lost a charge, and the client sends its key again. The provider has the first
// payment intent under the key, until it forgets the key. Of another payment's key the charge fails.
func TestResentKey(t *testing.T) {
	t.Parallel()
	dearer, declined := order(), order()
	dearer.Amount, declined.PaymentMethod = 2999, "pm_card_chargeDeclined"
	for name, test := range map[string]struct {
		first    domain.ChargeRequested
		forgets  bool
		again    domain.ChargeRequested
		captures int
		failure  domain.FailureCode
	}{
		"the payment was captured":                              {order(), false, order(), 1, ""},
		"the payment was declined":                              {declined, false, declined, 0, domain.CardDeclined},
		"the key is forgotten, so the audit has two captures":   {order(), true, order(), 2, ""},
		"another amount":                                        {order(), false, dearer, 1, domain.ProviderRefused},
		"the second charge expires before it asks the provider": {order(), false, until(nine), 1, domain.Expired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSandboxed(t, test.first)
			s.ends("done")
			first := s.stream.Charge.PaymentIntent
			if test.forgets {
				s.provider.forgetKeys()
			}
			s.memory = newMemory(t, fulfillment.Services{Provider: s.client}, test.again)
			s.ends("done")
			c, captures := s.stream.Charge, s.provider.records(t).Captures
			if len(captures) != test.captures || (c.Failure == nil) != (test.failure == "") || c.Failure != nil && c.Failure.Code != test.failure {
				t.Errorf("the charge is %s %v, want %q; the captures are %+v, want %d", c.Status, c.Failure, test.failure, captures, test.captures)
			}
			if same := c.PaymentIntent == first; same != slices.Contains([]string{"the payment was captured", "the payment was declined"}, name) {
				t.Errorf("the charge has %s, the first one had %s", c.PaymentIntent, first)
			}
		})
	}
}

// TestCustomer: a saved payment method is charged with its customer alone, and one that is attached to no
// customer once. The merchant reads the provider's reason.
func TestCustomer(t *testing.T) {
	t.Parallel()
	for method, rows := range map[string][]struct{ customer, because string }{
		"pm_saved_ada": {{"", "Please include the Customer"}, {"cus_bob", "does not belong to the Customer"}, {"cus_ada", ""}},
		"pm_once_used": {{"", ""}, {"", "may not be used again"}},
	} {
		s := newSandboxed(t, order())
		for i, row := range rows {
			first := order()
			first.PaymentMethod, first.Customer, first.Reference = method, row.customer, fmt.Sprint("ref_", i)
			s.memory = newMemory(t, fulfillment.Services{Provider: s.client}, first)
			s.ends("done")
			failure := s.stream.Charge.Failure
			if (failure == nil) != (row.because == "") || failure != nil && !strings.Contains(failure.Message, row.because) {
				t.Errorf("%s of %q failed because of %+v, want %q", method, row.customer, failure, row.because)
			}
		}
	}
}
