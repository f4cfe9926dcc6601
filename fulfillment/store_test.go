package fulfillment_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
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

	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestStore drives the handlers by any sequence of requests, deliveries, faults of the provider, calls that it executes
// late, deaths and lost leases, and compares the stream of the charge after every step with the provider's records. The store is a
// memory: what its constraints refuse is in database_test.go.
//
// The long form takes minutes, and rapid ends it early when the time of the test binary ends:
//
//	go test ./fulfillment -run TestStore -rapid.checks=10000 -rapid.steps=100 -timeout 2h -v
func TestStore(t *testing.T) {
	t.Parallel()
	bounds := map[string]string{"rapid.checks": "150", "rapid.steps": "30"}
	flag.Visit(func(given *flag.Flag) { delete(bounds, given.Name) })
	for name, value := range bounds {
		testdb.Must(t, flag.Set(name, value)) // as if they were given: rapid has no other way
	}
	count := map[string]int{}
	rapid.Check(t, func(r *rapid.T) {
		count["sequences"]++
		p := newProvider(t)
		defer p.Close()
		m := &machine{provider: p, count: count}
		m.memory = newMemory(t, fulfillment.Services{Provider: newClient(t, p.URL)})
		m.run(r)
	})
	t.Log(count)
	if !t.Failed() {
		t.Logf("0 violations in %d sequences, a bound of 3/n = %.1e", count["sequences"], 3/float64(cmp.Or(count["sequences"], 1)))
	}
}

// machine is one sequence: a charge, its open messages and a provider of its own.
type machine struct {
	*memory

	provider *provider
	open     []message
	count    map[string]int
}

// message is that of a request by the version of its event, or, at version 0, an event of the provider.
type message struct{ version, number int }

func (m *machine) run(t *rapid.T) {
	first := bare()
	first.PaymentMethod = rapid.SampledFrom([]string{
		"pm_card_visa", "pm_card_visa", "pm_card_visa", "pm_card_chargeDeclined", "pm_card_nobody", "pm_card_refundFail",
	}).Draw(t, "method")
	if rapid.Bool().Draw(t, "with items") {
		first.Items = order().Items
	}
	events, err := domain.Open(first)
	m.request(t, events, err)
	disturbed := func(t *rapid.T) {
		when := rapid.SampledFrom([]string{"before", "after"}).Draw(t, "when")
		m.work(t, rapid.SampledFrom([]string{"cut", "saved_500", "death", "overtaken", "asked"}).Draw(t, "what")+" "+when)
	}
	late := func(t *rapid.T) { m.work(t, "late before") }
	t.Repeat(map[string]func(*rapid.T){
		"cancel":       m.cancel,
		"refund":       m.refund,
		"refund again": m.refund,
		"the provider's event": func(*rapid.T) {
			m.open = append(m.open, message{0, len(m.open)})
		},
		"work":                 func(t *rapid.T) { m.work(t, "") },
		"work on":              func(t *rapid.T) { m.work(t, "") },
		"work disturbed":       disturbed,
		"work disturbed again": disturbed,
		"work cut":             late,
		"what was cut arrives": func(*rapid.T) { m.provider.executeLate(false) },
		"keys are forgotten":   func(*rapid.T) { m.provider.forgetKeys() },
		"":                     m.check,
	})
	for len(m.open) > 0 {
		m.work(t, "")
		m.check(t)
	}
	c := m.stream.Charge
	if pending := slices.ContainsFunc(c.Refunds, func(r domain.Refund) bool { return r.Status == domain.RefundStatusPending }); pending || !c.HasOutcome() {
		t.Fatalf("the charge or a refund has no outcome: %+v", c)
	}
	events = nil
	for _, e := range m.stream.Events {
		events = append(events, e.Event)
	}
	if _, err := (domain.Charge{}).Append(events...); err != nil {
		t.Fatalf("the stream is one that Append refuses: %v", err)
	}
}

// request stores the event of a decision, whose message is open from then on.
func (m *machine) request(t *rapid.T, events []domain.Event, err error) {
	for _, refusal := range []error{domain.ErrFinished, domain.ErrExceedsCaptured, domain.ErrNotCaptured, domain.ErrTooManyRefunds} {
		if errors.Is(err, refusal) {
			t.Skip(err)
		}
	}
	testdb.Must(t, err)
	if len(events) > 0 {
		m.append(events...)
		m.open = append(m.open, message{version: m.stream.Charge.Version})
	}
}

func (m *machine) cancel(t *rapid.T) {
	events, err := m.stream.Charge.RequestCancel()
	m.request(t, events, err)
}

func (m *machine) refund(t *rapid.T) {
	c := m.stream.Charge
	events, err := c.RequestRefund(domain.RefundRequested{
		RefundID: fmt.Sprint("re_", len(c.Refunds)), Notify: true, Amount: rapid.Int64Range(1, 1+c.Amount/2).Draw(t, "amount"),
	})
	m.request(t, events, err)
}

// work delivers one of the open messages. A message is delivered until a delivery has brought what the message is
// about to its outcome, as one does that nothing disturbs.
func (m *machine) work(t *rapid.T, disturbance string) {
	if len(m.open) == 0 {
		t.Skip("nothing to do")
	}
	ctx, kill := context.WithCancel(m.t.Context())
	defer kill()
	one, other := rapid.SampledFrom(m.open).Draw(t, "message"), rapid.SampledFrom(m.open).Draw(t, "other message")
	var struck atomic.Bool // in the goroutine of a call whose answer may be cut
	rival := ""
	overtake := func() { rival, m.lost = endOf(m.handle(m.t.Context(), other)), one == other }
	ask := func() { // a request of the merchant, which the charge then allows
		c := m.stream.Charge
		events, err := c.RequestCancel()
		if err != nil {
			events, err = c.RequestRefund(domain.RefundRequested{RefundID: fmt.Sprint("re_", len(c.Refunds)), Notify: true, Amount: 1})
		}
		if err == nil && len(events) > 0 {
			m.append(events...)
			m.open = append(m.open, message{version: m.stream.Charge.Version})
		}
	}
	what, when, _ := strings.Cut(disturbance, " ")
	failing := map[string]string{"before": failsBefore, "after": failsAfter}[when]
	if happens := map[string]func(*http.Request) (cut bool){ // at a call
		"late":      m.provider.keep,
		"cut":       func(*http.Request) bool { return true },
		"saved_500": func(*http.Request) bool { m.provider.control(http.MethodPut, "/faults", failing); return false },
		"death":     func(*http.Request) bool { kill(); return true },
		"overtaken": func(*http.Request) bool { overtake(); return false },
		"asked":     func(*http.Request) bool { ask(); return false },
	}[what]; happens != nil {
		at := rapid.SampledFrom([]int{1, 1, 1, 2, 2, 3, 4}).Draw(t, "call") // most deliveries make few
		m.provider.expect(fault{at, when == "after" && what != "saved_500", func(r *http.Request) bool { struck.Store(true); return happens(r) }})
	}
	end := endOf(m.handle(ctx, one))
	if ctx.Err() != nil {
		end = "dies"
	}
	m.provider.expect(fault{})
	m.provider.control(http.MethodDelete, "/faults", "")
	m.lost = false
	if m.count["deliveries"]++; struck.Load() {
		m.count[disturbance]++
	}
	if rival == "done" {
		m.finish(t, other)
	}
	switch {
	case end == "done":
		m.finish(t, one)
	case !struck.Load() || rival != "" && rival != "done" || !slices.Contains([]string{"waits", "lost", "dies"}, end):
		t.Fatalf("a handler returned %s, the one that overtook it %s", end, rival)
	}
}

func (m *machine) handle(ctx context.Context, one message) error {
	return m.deliverAbout(ctx, "stripe.refund.updated", one.version)
}

// finish closes a message, and checks that what it is about has come to its end.
func (m *machine) finish(t *rapid.T, one message) {
	m.open = slices.DeleteFunc(m.open, func(o message) bool { return o == one })
	c := m.stream.Charge
	if !c.HasOutcome() {
		t.Fatalf("the charge has no outcome: %+v", c)
	}
	if one.version == 0 {
		return
	}
	asked, _ := m.stream.At(one.version).Event.(domain.RefundRequested)
	if r, _ := c.Refund(asked.RefundID); r.Status == domain.RefundStatusPending {
		t.Fatalf("the refund has no outcome: %+v", r)
	}
}

// check compares the stream with the money that the provider has moved: taken once for a charge that succeeded,
// at most once for one that is open, and never for one that failed, whose intent is closed; and returned once
// for each refund that succeeded.
func (m *machine) check(t *rapid.T) {
	c, seen := m.stream.Charge, m.provider.records()
	failed, succeeded := c.Status == domain.Failed, c.StepStatus(domain.Payment) == domain.StepDone
	open := slices.ContainsFunc(seen.Intents, func(i harness.Intent) bool { return i.Status == "requires_payment_method" })
	if taken := len(seen.Captures); taken > 1 || failed && (taken > 0 || open) || succeeded && taken != 1 {
		t.Fatalf("the charge is %s, was taken %d times, and may be: %v", c.Status, taken, open)
	}
	returned := map[string][]int64{}
	for _, r := range seen.Refunds {
		returned[r.Reference] = append(returned[r.Reference], r.Amount)
	}
	for _, r := range c.Refunds {
		want := []int64{r.Amount}
		if r.Status == domain.RefundStatusFailed || r.Status == domain.RefundStatusPending && len(returned[r.ID]) == 0 {
			want = nil
		}
		if !slices.Equal(returned[r.ID], want) {
			t.Fatalf("the refund %s of %d is %s, and the provider returned %v", r.ID, r.Amount, r.Status, returned[r.ID])
		}
	}
}

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

func TestMain(m *testing.M) { testrun.Main(m) }

// A step that only one of the two packages lists would never run.
func TestSteps_matchTheDomain(t *testing.T) {
	t.Parallel()
	testrun.Same(t, "steps", domain.Steps(), fulfillment.StepNames())
}

// TestWakeUp is about messages of which the handler believes the charge and the version alone.
func TestWakeUp(t *testing.T) {
	t.Parallel()
	const request, event, outcome = "charge.requested.v1", "stripe.refund.failed", "charge.succeeded.v1"
	for name, test := range map[string]struct{ message, payload, key, end string }{
		"a message that says nothing but the charge is a wake-up too": {request, `{}`, "ch_1", "done"},
		"a message about a charge that is not there waits":            {request, `{"id":"e","type":"t","charge_id":"ch_2","version":1}`, "ch_1", "waits"},
		"a message about an event that cannot be read yet waits":      {request, `{"id":"e","type":"t","charge_id":"ch_1","version":9}`, "ch_1", "waits"},
		"a request of no charge is an error":                          {request, `{}`, "ch_2", "load stream ch_2: no such charge"},
		"an event of a charge that is not ours is done":               {event, `{}`, "ch_2", "done"},
		"an outcome that names no event becomes a dead letter":        {outcome, `{}`, "ch_1", "dead"},
		"an outcome that names a capture becomes a dead letter":       {outcome, `{"id":"e","type":"t","charge_id":"ch_1","version":3}`, "ch_1", "dead"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newScripted(t, "captured")
			d := &inbox.Delivery{Message: inbox.Message{ID: "m", Type: test.message, OrderingKey: test.key, Payload: []byte(test.payload)}}
			if end := endOf(m.receive(t.Context(), d)); end != test.end {
				t.Errorf("the delivery ends as %s, want %s", end, test.end)
			}
		})
	}
}

// TestOutcome_continuesTheTrace: of the metadata of the message before it, the message about an outcome has
// the trace and the correlation, and nothing else.
func TestOutcome_continuesTheTrace(t *testing.T) {
	t.Parallel()
	m := newScripted(t, "started")
	m.metadata = map[string]string{"correlation_id": "req_1", "traceparent": "t1", "tracestate": "private", "baggage": "private"}
	m.play("", "retrieve:succeeded", 1)
	want := map[string]string{"correlation_id": "req_1", "traceparent": "t1", "causation_id": m.stream.At(1).ID.String()}
	var got map[string]string
	if len(m.sent) != 1 || json.Unmarshal([]byte(m.sent[0].metadata), &got) != nil {
		t.Fatalf("it sends %v", m.sent)
	}
	testrun.Same(t, "metadata", want, got)
}
