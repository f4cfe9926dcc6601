package demo

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
)

// The traffic against a service that keeps its promises: the verdict on what it
// recorded finds nothing to complain of.
func TestTraffic(t *testing.T) {
	t.Parallel()
	service := &fakeService{answers: map[string]answer{}, bodies: map[string]string{}, charges: map[string]*fakeCharge{}}
	api := httptest.NewServer(service.handler())
	defer api.Close()

	plan := newPlan(2, 60, "test")
	for i := range plan.Charges {
		charge := &plan.Charges[i]
		if charge.mustFail() { // this service declines nothing
			charge.Refunds = nil
		}
		charge.Ends, charge.At = []string{succeeded}, 0
	}
	plan.Stock = nil

	counts := &tally{}
	traffic := newTraffic(house{apis: []string{api.URL, api.URL}}, counts)
	seen := evidence{plan: plan, tally: counts}
	seen.records = traffic.carryAll(t.Context(), plan)
	traffic.lookAgain(t.Context(), seen.records)
	seen.listed = traffic.list(t.Context(), seen.records)
	seen.books = service.books

	for _, check := range judge(seen) {
		if strings.HasPrefix(check.Name, "outside:") && check.Violated != 0 {
			t.Errorf("%s: checked %d, violated %d: %v", check.Name, check.Checked, check.Violated, check.Examples)
		}
	}
	reused := planned(seen, func(c Charge) bool { return c.Reuse })
	canceled := planned(seen, func(c Charge) bool { return c.Cancel })
	if want := int64(3*(len(plan.Charges)+canceled+plannedRefunds(seen)) + reused); counts.requests.Load() != want {
		t.Errorf("sent %d requests, should be %d", counts.requests.Load(), want)
	}
	if counts.accepted.Load() != int64(len(plan.Charges)) || counts.underWay() != 0 {
		t.Errorf("%d accepted, %d under way", counts.accepted.Load(), counts.underWay())
	}
}

// fakeService answers as the service does when nothing goes wrong, and keeps
// the books of the outside world itself.
type fakeService struct {
	mu      sync.Mutex
	answers map[string]answer // by key
	bodies  map[string]string // by key
	charges map[string]*fakeCharge
	books   books
}

type fakeCharge struct {
	amount, refunded int64
	method           string
	refunds          map[string]string // views
	events           []event
}

func (c *fakeCharge) happened(types ...string) {
	for _, name := range types {
		c.events = append(c.events, event{Version: len(c.events) + 1, Type: name + ".v1"})
	}
}

func (c *fakeCharge) status() string {
	switch c.refunded {
	case 0:
		return succeeded
	case c.amount:
		return refunded
	default:
		return partiallyRefunded
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
	mux.HandleFunc("POST /v1/charges/{id}/cancel", s.post(func(*http.Request, map[string]any) answer {
		return answer{Status: http.StatusConflict, Body: `{"type":"/problems/conflict"}`}
	}))
	mux.HandleFunc("POST /v1/charges/{id}/refunds", s.post(s.refund))
	mux.HandleFunc("GET /v1/charges", s.list)
	mux.HandleFunc("GET /v1/charges/{id}", s.get(func(r *http.Request, c *fakeCharge) string { return c.view(r.PathValue("id")) }))
	mux.HandleFunc("GET /v1/charges/{id}/refunds/{refund}", s.get(func(r *http.Request, c *fakeCharge) string {
		return c.refunds[r.PathValue("refund")]
	}))
	mux.HandleFunc("GET /v1/charges/{id}/events", s.get(func(_ *http.Request, c *fakeCharge) string {
		return string(encode(map[string]any{"data": c.events}))
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
func (s *fakeService) post(first func(r *http.Request, body map[string]any) answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil && !errors.Is(err, io.EOF) {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		key, text := r.Header.Get("Idempotency-Key"), string(encode(body))
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

func (s *fakeService) charge(_ *http.Request, body map[string]any) answer {
	id := fmt.Sprintf("ch_%d", len(s.charges))
	amount, _ := body["amount"].(float64)
	currency, _ := body["currency"].(string)
	method, _ := body["payment_method"].(string)
	c := &fakeCharge{amount: int64(amount), method: method, refunds: map[string]string{}}
	c.happened("charge.requested", "payment.captured", "charge.succeeded", "merchant.notified")
	s.charges[id] = c
	s.books.Captures = append(s.books.Captures, capture{Reference: id, Amount: c.amount, Currency: currency})
	s.books.Notifications = append(s.books.Notifications, notification{Reference: id, Type: "charge.succeeded", Deliveries: 1, Effects: 1})
	return accepted("/v1/charges/"+id, id)
}

func (s *fakeService) refund(r *http.Request, body map[string]any) answer {
	c := s.charges[r.PathValue("id")]
	id := fmt.Sprintf("re_%s_%d", r.PathValue("id"), len(c.refunds))
	amount := c.amount - c.refunded
	if asked, given := body["amount"].(float64); given {
		amount = int64(asked)
	}
	if amount > c.amount-c.refunded {
		return answer{Status: http.StatusUnprocessableEntity, Body: `{"type":"/problems/refund-exceeds-captured"}`}
	}
	status := succeeded
	if c.method == cardRefundFail {
		status = failed
	} else {
		c.refunded += amount
		s.books.Refunds = append(s.books.Refunds, refund{Reference: id, Amount: amount})
	}
	c.happened("refund.requested", "refund."+status, "merchant.notified")
	s.books.Notifications = append(s.books.Notifications, notification{Reference: id, Type: "refund." + status, Deliveries: 1, Effects: 1})
	c.refunds[id] = fmt.Sprintf(`{"id":%q,"amount":%d,"status":%q}`, id, amount, status)
	return accepted(r.URL.Path+"/"+id, id)
}

func accepted(location, id string) answer {
	return answer{Status: http.StatusAccepted, Location: location, Body: fmt.Sprintf(`{"id":%q,"status":"pending"}`, id)}
}
