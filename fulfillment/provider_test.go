package fulfillment_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
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

// fault is what happens at one of the next calls, counted from 1, before the sandbox executes it or after. Where
// happens returns true, the connection is cut there.
type fault struct {
	at      int
	after   bool
	happens func(*http.Request) (cut bool)
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answered, strikes := httptest.NewRecorder(), p.strikes()
		if strikes.happens != nil && !strikes.after && strikes.happens(r) {
			panic(http.ErrAbortHandler)
		}
		p.sandbox.ServeHTTP(answered, r)
		if strikes.happens != nil && strikes.after && strikes.happens(r) {
			panic(http.ErrAbortHandler)
		}
		maps.Copy(w.Header(), answered.Header())
		w.WriteHeader(answered.Code)
		_, _ = answered.Body.WriteTo(w)
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

// strikes is the fault of the present call, the zero fault if it has none.
func (p *provider) strikes() fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault.at--; p.fault.at == 0 {
		return p.fault
	}
	return fault{}
}

// expect sets the fault of the calls from now on.
func (p *provider) expect(next fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = next
}

// keep keeps the call for executeLate.
func (p *provider) keep(r *http.Request) (cut bool) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	late := r.Clone(context.WithoutCancel(r.Context()))
	late.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = append(p.late, late)
	return true
}

// executeLate executes the calls that keep has, all of them or those about refunds, at the sandbox.
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
func (p *provider) control(method, path, body string) []byte {
	answered := httptest.NewRecorder()
	p.sandbox.ServeHTTP(answered, httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body)))
	if answered.Code/100 != 2 {
		panic(fmt.Sprintf("%s %s: answered %d", method, path, answered.Code))
	}
	return answered.Body.Bytes()
}

// records are what the sandbox says that it executed.
func (p *provider) records() (r harness.Books) {
	if err := json.Unmarshal(p.control(http.MethodGet, "/books", ""), &r); err != nil {
		panic(err)
	}
	return r
}

// Faults of the sandbox. The seeds are such that the first draw fails before the effect, or after it; either
// way the sandbox saves the 500 under the key.
const (
	failsBefore = `{"seed": 4, "error_500": 1}`
	failsAfter  = `{"seed": 1, "error_500": 1}`
)

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
			p := newProvider(t)
			client := newClient(t, p.URL)
			charged := func(first domain.ChargeRequested) domain.Charge {
				m := newMemory(t, fulfillment.Services{Provider: client}, first)
				testdb.Must(t, m.deliver(""))
				return m.stream.Charge
			}
			first := charged(test.first).PaymentIntent
			if test.forgets {
				p.forgetKeys()
			}
			c, captures := charged(test.again), p.records().Captures
			if len(captures) != test.captures || (c.Failure == nil) != (test.failure == "") || c.Failure != nil && c.Failure.Code != test.failure {
				t.Errorf("the charge is %s %v, want %q; the captures are %+v, want %d", c.Status, c.Failure, test.failure, captures, test.captures)
			}
			if same := c.PaymentIntent == first; same != slices.Contains([]string{"the payment was captured", "the payment was declined"}, name) {
				t.Errorf("the charge has %s, the first one had %s", c.PaymentIntent, first)
			}
		})
	}
}
