package httpapi_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// watched notes what an Observer is told.
type watched struct {
	mu       sync.Mutex
	answered []httpapi.Answered
	events   inbox.Reception
}

func (o *watched) observer() httpapi.Observer {
	return httpapi.Observer{
		Answered: func(a httpapi.Answered) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.answered = append(o.answered, a)
		},
		Event: func(r inbox.Reception) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.events.New += r.New
			o.events.Duplicates += r.Duplicates
			o.events.Aside += r.Aside
		},
	}
}

func (o *watched) last() httpapi.Answered {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.answered[len(o.answered)-1]
}

func TestObserver(t *testing.T) {
	t.Parallel()
	told := &watched{}
	db := openWith(t, postgres.Options{LockTimeout: 20 * time.Millisecond})
	w := serveOn(t, db, func(api *httpapi.Config) { api.Observer = told.observer() })
	w.accept(t, "old", body())
	exec(t, w.db, `update idempotency_keys set expires_at = clock_timestamp() - interval '1 second'`)
	hold(t, w.db, "held")
	for _, test := range []struct {
		name string
		call call
		want httpapi.Answered
	}{
		{"a key's first request", post("key", body()), httpapi.Answered{Method: "POST", Route: "/v1/charges", Status: 202, Key: httpapi.KeyFirst}},
		{"its replay", post("key", body()), httpapi.Answered{Method: "POST", Route: "/v1/charges", Status: 202, Key: httpapi.KeyReplayed}},
		{"another request under it", post("key", body("amount", "1")), httpapi.Answered{Method: "POST", Route: "/v1/charges", Status: 422, Key: httpapi.KeyReused}},
		{"an expired key", post("old", body()), httpapi.Answered{Method: "POST", Route: "/v1/charges", Status: 410, Key: httpapi.KeyExpired}},
		{"a key in flight", post("held", body()), httpapi.Answered{Method: "POST", Route: "/v1/charges", Status: 409, Key: httpapi.KeyInUse}},
		{
			"a refusal that is stored", to("/v1/charges/ch_1/refunds", "refund", "{}"),
			httpapi.Answered{Method: "POST", Route: "/v1/charges/:id/refunds", Status: 404, Key: httpapi.KeyFirst},
		},
		{
			"and replayed", to("/v1/charges/ch_1/refunds", "refund", "{}"),
			httpapi.Answered{Method: "POST", Route: "/v1/charges/:id/refunds", Status: 404, Key: httpapi.KeyReplayed},
		},
		{"a request without an answer of its own", post("key", "{"), httpapi.Answered{Method: "POST", Route: "/v1/charges", Status: 400}},
		{"a read", get("/v1/charges/ch_1"), httpapi.Answered{Method: "GET", Route: "/v1/charges/:id", Status: 404}},
		{"no such path", get("/nowhere/" + strings.Repeat("x", 50)), httpapi.Answered{Method: "GET", Status: 404}},
		{"an odd method", get("/v1/charges").like("BREW"), httpapi.Answered{Method: "other", Route: "/v1/charges", Status: 405}},
	} {
		a := w.send(t, test.call)
		if diff := cmp.Diff(test.want, told.last(), cmpopts.IgnoreFields(httpapi.Answered{}, "Took")); diff != "" {
			t.Errorf("%s, answered %s (-want +got):\n%s", test.name, a.body, diff)
		}
		if told.last().Took <= 0 {
			t.Errorf("%s took %s", test.name, told.last().Took)
		}
	}
	w.api.Close()
	w.send(t, post("key", body()))
	if got := told.last(); got.Status != http.StatusServiceUnavailable || got.Key != "" {
		t.Errorf("a store that is down is told as %+v", got)
	}
}

func TestObserverOfPendingAnswers(t *testing.T) {
	t.Parallel()
	told := &watched{}
	db := openWith(t, postgres.Options{LockTimeout: 20 * time.Millisecond})
	w := serveOn(t, db, func(api *httpapi.Config) { api.Observer, api.InFlight = told.observer(), http.StatusAccepted })
	hold(t, w.db, "held")
	w.send(t, post("held", body()))
	if got := told.last(); got.Status != http.StatusAccepted || got.Key != httpapi.KeyInUse {
		t.Errorf("told as %+v", got)
	}
}

func TestObserverOfEvents(t *testing.T) {
	t.Parallel()
	told := &watched{}
	w := serveOn(t, testdb.Reused(t), func(api *httpapi.Config) {
		takesEvents(api)
		api.Observer = told.observer()
	})
	charge := idOf(w.accept(t, "key-1", body()).header.Get("Location"))
	for _, e := range []string{
		event("evt_1", "payment_intent.succeeded", intentOf(charge)),
		event("evt_1", "payment_intent.succeeded", intentOf(charge)),
		event("evt_1", "payment_intent.canceled", intentOf(charge)),
		event("evt_2", "payment_intent.succeeded", intentOf("ch_of_nobody")),
		event("evt_3", "payout.paid", "{}"),
	} {
		wantReceived(t, w.send(t, signed(e)))
	}
	if diff := cmp.Diff(inbox.Reception{New: 1, Duplicates: 1, Aside: 1}, told.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := serveOn(t, testdb.Reused(t), func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{PerSecond: 1, InFlight: 1}
		api.Now = new(clock).now
		api.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = w.Write([]byte("told"))
		})
	})
	for range 3 {
		if a := w.send(t, get("/metrics").with("Authorization")); a.status != http.StatusOK || a.body != "told" {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	wantProblem(t, serve(t).send(t, get("/metrics")), "/problems/not-found")
}
