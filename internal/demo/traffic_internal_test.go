package demo

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// The traffic against a service that keeps its promises: the verdict on what it
// recorded finds nothing to complain of.
func TestTraffic(t *testing.T) {
	t.Parallel()
	service := &fakeService{answers: map[string]answer{}, bodies: map[string]string{}}
	api := httptest.NewServer(service.handler())
	defer api.Close()

	plan := newPlan(2, 24, "test")
	for i := range plan.Charges {
		charge := &plan.Charges[i]
		charge.Ends, charge.At = []string{succeeded}, 0
	}
	plan.Stock = nil

	counts := &tally{}
	traffic := newTraffic(house{apis: []string{api.URL, api.URL}}, counts)
	seen := evidence{plan: plan, tally: counts}
	seen.records = traffic.carryAll(t.Context(), plan)
	seen.books = service.books

	for _, check := range judge(seen) {
		if strings.HasPrefix(check.Name, "outside:") && check.Violated != 0 {
			t.Errorf("%s: checked %d, violated %d: %v", check.Name, check.Checked, check.Violated, check.Examples)
		}
	}
	reused := planned(seen, func(c Charge) bool { return c.Reuse })
	if want := int64(3*len(plan.Charges) + reused); counts.requests.Load() != want {
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
	orders  []string          // by number of the charge
	books   books
}

func (s *fakeService) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/charges", s.post(s.charge))
	mux.HandleFunc("GET /v1/charges/{id}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"id":%q,"status":"succeeded","failure":null}`, r.PathValue("id"))
	})
	mux.HandleFunc("GET /v1/charges/{id}/events", s.events)
	return mux
}

// post runs a request's first occurrence, replays the others and refuses other
// bodies.
func (s *fakeService) post(first func(r *http.Request, body map[string]any) answer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
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
		w.Header().Set("Location", s.answers[key].Location)
		w.WriteHeader(http.StatusAccepted)
		_, _ = fmt.Fprint(w, s.answers[key].Body)
	}
}

func (s *fakeService) charge(_ *http.Request, body map[string]any) answer {
	id := fmt.Sprintf("ch_%d", len(s.orders))
	s.orders = append(s.orders, fmt.Sprint(body["order_id"]))
	amount, _ := body["amount"].(float64)
	currency, _ := body["currency"].(string)
	s.books.Captures = append(s.books.Captures, capture{Reference: id, Amount: int64(amount), Currency: currency})
	s.books.Notifications = append(s.books.Notifications, notification{Reference: id, Type: "charge.succeeded", Deliveries: 1, Effects: 1})
	return answer{Location: "/v1/charges/" + id, Body: fmt.Sprintf(`{"id":%q,"status":"pending"}`, id)}
}

func (s *fakeService) events(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	types := []string{"charge.requested.v1", "payment.captured.v1", "charge.succeeded.v1", "merchant.notified.v1"}
	var stream struct {
		Data []event `json:"data"`
	}
	for i, name := range types {
		stream.Data = append(stream.Data, event{Version: i + 1, Type: name})
	}
	_, _ = w.Write(encode(stream))
}
