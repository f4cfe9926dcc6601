package validate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/robustness/traffic"
)

// TestJudge_findsNothingInTrafficOfACorrectService runs real traffic against a
// service that keeps its promises.
func TestJudge_findsNothingInTrafficOfACorrectService(t *testing.T) {
	t.Parallel()
	service := &fakeService{answers: map[string]traffic.Answer{}, bodies: map[string]string{}, charges: map[string]*fakeCharge{}}
	api := httptest.NewServer(service.handler())
	defer api.Close()

	e := Evidence{Plan: traffic.NewPlan(2, 60, "test")}
	e.Plan.Stock = nil
	for i := range e.Plan.Charges {
		charge := &e.Plan.Charges[i]
		if charge.MustFail() { // this service declines nothing
			charge.Refunds = nil
		}
		charge.Outcomes, charge.At = []string{traffic.Succeeded}, 0
	}
	tally := &traffic.Tally{}
	sender := traffic.New(traffic.Target{APIs: []string{api.URL, api.URL}}, tally)
	e.Records = sender.Run(t.Context(), e.Plan)
	sender.Reread(t.Context(), e.Records)
	e.Listed = sender.List(t.Context(), e.Records)
	e.Books = service.books

	for _, check := range Judge(e) {
		if strings.HasPrefix(check.Name, "outside:") && check.Violated != 0 {
			t.Errorf("%s: checked %d, violated %d: %v", check.Name, check.Checked, check.Violated, check.Examples)
		}
	}
	reused := e.Plan.Count(func(c traffic.Charge) bool { return c.Reuse })
	canceled := e.Plan.Count(func(c traffic.Charge) bool { return c.Cancel })
	if want := int64(3*(len(e.Plan.Charges)+canceled+e.Plan.Refunds()) + reused); tally.Requests.Load() != want {
		t.Errorf("sent %d requests, should be %d", tally.Requests.Load(), want)
	}
	if tally.Accepted.Load() != int64(len(e.Plan.Charges)) || tally.InFlight() != 0 {
		t.Errorf("%d accepted, %d in flight", tally.Accepted.Load(), tally.InFlight())
	}
}

// fakeService answers as a correct service does, and keeps the records of the
// provider itself.
type fakeService struct {
	mu      sync.Mutex
	answers map[string]traffic.Answer // by key
	bodies  map[string]string         // by key
	charges map[string]*fakeCharge
	books   traffic.Books
}

type fakeCharge struct {
	amount, refunded int64
	method           string
	refunds          map[string]string // views
	events           []traffic.Event
}

func (c *fakeCharge) happened(types ...string) {
	for _, name := range types {
		c.events = append(c.events, traffic.Event{Version: len(c.events) + 1, Type: name + ".v1"})
	}
}

func (c *fakeCharge) status() string {
	switch c.refunded {
	case 0:
		return traffic.Succeeded
	case c.amount:
		return traffic.Refunded
	default:
		return traffic.PartiallyRefunded
	}
}

func (c *fakeCharge) view(id string) string {
	return fmt.Sprintf(`{"id":%q,"status":%q,"amount_refunded":%d,"failure":null}`, id, c.status(), c.refunded)
}

// list is a page; the newest charge has the highest number.
func (s *fakeService) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, _ := strconv.Atoi(r.FormValue("limit"))
	next := len(s.charges)
	if after := r.FormValue("starting_after"); after != "" {
		next, _ = strconv.Atoi(strings.TrimPrefix(after, "ch_"))
	}
	var page []string
	for ; next > 0 && len(page) < limit; next-- {
		id := fmt.Sprintf("ch_%d", next-1)
		page = append(page, s.charges[id].view(id))
	}
	_, _ = fmt.Fprintf(w, `{"data":[%s],"has_more":%t}`, strings.Join(page, ","), next > 0)
}

func (s *fakeService) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/charges", s.post(s.charge))
	mux.HandleFunc("POST /v1/charges/{id}/cancel", s.post(func(*http.Request, map[string]any) traffic.Answer {
		return traffic.Answer{Status: http.StatusConflict, Body: `{"type":"/problems/conflict"}`}
	}))
	mux.HandleFunc("POST /v1/charges/{id}/refunds", s.post(s.refund))
	mux.HandleFunc("GET /v1/charges", s.list)
	mux.HandleFunc("GET /v1/charges/{id}", s.get(func(r *http.Request, c *fakeCharge) string { return c.view(r.PathValue("id")) }))
	mux.HandleFunc("GET /v1/charges/{id}/refunds/{refund}", s.get(func(r *http.Request, c *fakeCharge) string {
		return c.refunds[r.PathValue("refund")]
	}))
	mux.HandleFunc("GET /v1/charges/{id}/events", s.get(func(_ *http.Request, c *fakeCharge) string {
		return encoded(map[string]any{"data": c.events})
	}))
	return mux
}

func (s *fakeService) get(show func(*http.Request, *fakeCharge) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = fmt.Fprint(w, show(r, s.charges[r.PathValue("id")]))
	}
}

// post runs a request's first occurrence, replays the others and refuses other
// bodies.
func (s *fakeService) post(first func(r *http.Request, body map[string]any) traffic.Answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		key, text := r.Header.Get("Idempotency-Key"), encoded(body)
		if _, known := s.answers[key]; !known {
			s.answers[key], s.bodies[key] = first(r, body), text
		}
		if s.bodies[key] != text {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = fmt.Fprint(w, `{"type":"/problems/idempotency-key-reused"}`)
			return
		}
		if location := s.answers[key].Location; location != "" {
			w.Header().Set("Location", location)
		}
		w.WriteHeader(s.answers[key].Status)
		_, _ = fmt.Fprint(w, s.answers[key].Body)
	}
}

func (s *fakeService) charge(_ *http.Request, body map[string]any) traffic.Answer {
	id := fmt.Sprintf("ch_%d", len(s.charges))
	amount, _ := body["amount"].(float64)
	currency, _ := body["currency"].(string)
	method, _ := body["payment_method"].(string)
	c := &fakeCharge{amount: int64(amount), method: method, refunds: map[string]string{}}
	c.happened("charge.requested", "payment.captured", "charge.succeeded", "merchant.notified")
	s.charges[id] = c
	s.books.Captures = append(s.books.Captures, traffic.Capture{Reference: id, Amount: c.amount, Currency: currency})
	s.books.Notifications = append(s.books.Notifications, traffic.Notification{Reference: id, Type: "charge.succeeded", Deliveries: 1, Effects: 1})
	return accepted("/v1/charges/"+id, id)
}

func (s *fakeService) refund(r *http.Request, body map[string]any) traffic.Answer {
	c := s.charges[r.PathValue("id")]
	id := fmt.Sprintf("re_%s_%d", r.PathValue("id"), len(c.refunds))
	amount := c.amount - c.refunded
	if asked, given := body["amount"].(float64); given {
		amount = int64(asked)
	}
	if amount > c.amount-c.refunded {
		return traffic.Answer{Status: http.StatusUnprocessableEntity, Body: `{"type":"/problems/refund-exceeds-captured"}`}
	}
	status := traffic.Succeeded
	if c.method == "pm_card_refundFail" {
		status = traffic.Failed
	} else {
		c.refunded += amount
		s.books.Refunds = append(s.books.Refunds, traffic.Repayment{Reference: id, Amount: amount})
	}
	c.happened("refund.requested", "refund."+status, "merchant.notified")
	s.books.Notifications = append(s.books.Notifications, traffic.Notification{Reference: id, Type: "refund." + status, Deliveries: 1, Effects: 1})
	c.refunds[id] = fmt.Sprintf(`{"id":%q,"amount":%d,"status":%q}`, id, amount, status)
	return accepted(r.URL.Path+"/"+id, id)
}

func encoded(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
