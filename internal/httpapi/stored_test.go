package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// answered is a request whose answer is stored, and what is at its Location.
type answered struct {
	name   string
	call   call
	status int
	kind   string // of the problem
}

// outcomes are requests with every kind of answer that is stored.
func (w *world) outcomes(t *testing.T) (all []answered, open, paid string) {
	t.Helper()
	open, paid = w.accept(t, "open", body()).header.Get("Location"), w.captured(t, "paid")
	const nowhere = "/v1/charges/ch_00000000000000000000000000000000"
	return []answered{
		{"an accepted charge", post("a", body()), http.StatusAccepted, ""},
		{"an accepted cancellation", to(open+"/cancel", "b", ""), http.StatusAccepted, ""},
		{"an accepted refund", to(paid+"/refunds", "c", `{"amount":300}`), http.StatusAccepted, ""},
		{"a cancellation of nothing", to(nowhere+"/cancel", "d", ""), http.StatusNotFound, "/problems/not-found"},
		{"a refund of nothing", to(nowhere+"/refunds", "e", `{"amount":1}`), http.StatusNotFound, "/problems/not-found"},
		{"a cancellation that came too late", to(paid+"/cancel", "f", ""), http.StatusConflict, "/problems/conflict"},
		{"a refund that came too early", to(open+"/refunds", "g", `{"amount":1}`), http.StatusConflict, "/problems/conflict"},
		{"a refund of too much", to(paid+"/refunds", "h", `{"amount":1701}`), http.StatusUnprocessableEntity, "/problems/refund-exceeds-captured"},
	}, open, paid
}

// firsts sends each of them for the first time.
func (w *world) firsts(t *testing.T, all []answered) []answer {
	t.Helper()
	answers := make([]answer, len(all))
	for i, test := range all {
		answers[i] = w.send(t, test.call)
		if answers[i].status != test.status {
			t.Fatalf("%s: status %d, want %d: %s", test.name, answers[i].status, test.status, answers[i].body)
		}
	}
	return answers
}

// Whatever has become of the charges since, a key has the answer that it had.
func TestReplay_repeatsEveryStoredAnswer(t *testing.T) {
	t.Parallel()
	w := serve(t)
	all, open, paid := w.outcomes(t)
	none := rows(t, w.db)
	answers := w.firsts(t, all)
	wantRows(t, w.db, none, map[string]int64{"idempotency_keys": 8, "ledger_events": 3, "ledger_postings": 2, "outbox": 3})
	refund := answers[2].header.Get("Location")
	w.happen(t, open, domain.FailCanceled{})
	w.happen(t, paid, domain.ResolveRefund{
		RefundID: strings.TrimPrefix(refund, paid+"/refunds/"), ProviderRefund: "re_9",
		Amount: domain.Money{Amount: 300, Currency: "USD"},
	})
	before := rows(t, w.db)
	for i, test := range all {
		t.Run(test.name, func(t *testing.T) {
			if answers[i].header.Get("Idempotency-Expires") == "" {
				t.Error("Idempotency-Expires is missing")
			}
			if test.kind != "" {
				if p := readProblem(t, answers[i]); p.Type != test.kind || p.Status != test.status || p.RetryWith != "new-key" {
					t.Errorf("want %s, and another key for another try: %s", test.kind, answers[i].body)
				}
			}
			if hasLocation := answers[i].header.Get("Location") != ""; hasLocation != (test.status == http.StatusAccepted) {
				t.Errorf("Location is %q", answers[i].header.Get("Location"))
			}
			wantReplay(t, answers[i], w.send(t, test.call))
			wantRows(t, w.db, before, nil)
		})
	}
}

func TestExpiredKey_isGone(t *testing.T) {
	t.Parallel()
	w := serve(t)
	all, _, _ := w.outcomes(t)
	answers := w.firsts(t, all)
	exec(t, w.db, `update idempotency_keys set expires_at = clock_timestamp()`)
	before := rows(t, w.db)
	for _, swept := range []bool{false, true} {
		if swept {
			if _, err := idempotency.Sweep(t.Context(), w.db, 100); err != nil {
				t.Fatal(err)
			}
		}
		for i, test := range all {
			a := w.send(t, test.call)
			wantProblem(t, a, "/problems/idempotency-key-expired")
			if got, want := a.header.Get("Location"), answers[i].header.Get("Location"); got != want {
				t.Errorf("%s: Location is %q, want %q", test.name, got, want)
			}
			if got, want := a.header.Get("Idempotency-Expires"), answers[i].header.Get("Idempotency-Expires"); got == "" || got == want {
				t.Errorf("%s: Idempotency-Expires is %q, and was %q", test.name, got, want)
			}
		}
		// The tombstone knows the request's fingerprint and where its answer is, and
		// no member of it.
		wantPointers(t, wantProblem(t, w.send(t, post("a", body("amount", "1"))), "/problems/idempotency-key-reused"))
		location := answers[0].header.Get("Location")
		if uses := data(t, w.send(t, get("/v1/idempotency-keys/a"))); len(uses) != 1 || uses[0]["location"] != location {
			t.Errorf("deleted %t: the key led to %v, want %s", swept, uses, location)
		}
		wantRows(t, w.db, before, nil)
	}
}

// What a fault of ours refuses is not stored, and the same request under the
// same key is carried out.
func TestServerFault_isNotStored(t *testing.T) {
	testdb.Long(t, "it waits for seconds")
	t.Parallel()
	for name, plant := range map[string]struct{ fault, repair string }{
		"a write that the store refuses": {
			`alter table ledger_events add constraint planted check (stream_id = '') not valid`,
			`alter table ledger_events drop constraint planted`,
		},
		"the last write that the store refuses": {
			`alter table outbox add constraint planted check (message_id = '') not valid`,
			`alter table outbox drop constraint planted`,
		},
		"a race for a version that is lost for ever": {
			`
create function lose() returns trigger language plpgsql as $$
begin
  raise unique_violation using constraint = 'ledger_events_version_once';
end
$$;
create trigger planted before insert on ledger_events for each row execute function lose()`,
			`drop function lose cascade`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t)
			for _, r := range w.routes(t) {
				before := rows(t, w.db)
				plantIn(t, w, plant.fault)
				a := w.send(t, r.under("key"))
				wantProblem(t, a, "/problems/unavailable")
				if a.header.Get("Idempotency-Expires") != "" || a.header.Get("Location") != "" {
					t.Errorf("%s: headers %v", r.name, a.header)
				}
				wantRows(t, w.db, before, nil)
				plantIn(t, w, plant.repair)
				wantReplay(t, w.accepted(t, r.under("key")), w.send(t, r.under("key")))
				wantRows(t, w.db, before, r.adds)
			}
		})
	}
}

// plantIn runs statements that change the schema.
func plantIn(t *testing.T, w *world, statements string) {
	t.Helper()
	testdb.Exec(t, w.db.Pool(), statements)
}

// memory is a cache that keeps everything, counts what it has answered, and does
// not look which request it answers.
type memory struct {
	mu      sync.Mutex
	records map[string]idempotency.Record
	answers int
}

func (m *memory) Find(_ context.Context, key idempotency.Key, _ []byte) idempotency.Cached {
	m.mu.Lock()
	defer m.mu.Unlock()
	place := fmt.Sprintf("%q", key)
	record, found := m.records[place]
	if found {
		m.answers++
	}
	return idempotency.Cached{Record: record, Found: found, Keep: func(record idempotency.Record) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.records[place] = record
	}}
}

func TestCache_answersReplaysAlone(t *testing.T) {
	t.Parallel()
	cache := &memory{records: map[string]idempotency.Record{}}
	w := serve(t, func(api *httpapi.Config) { api.Intake.Keys.Cache = cache })
	all, open, paid := w.outcomes(t)
	answers := w.firsts(t, all)
	if cache.answers != 0 {
		t.Errorf("it answered %d requests that were new", cache.answers)
	}
	before := rows(t, w.db)
	for i, test := range all {
		wantReplay(t, answers[i], w.send(t, test.call))
	}
	if cache.answers != len(all) {
		t.Errorf("it answered %d of %d replays", cache.answers, len(all))
	}

	// Another request under a key, and a key of which it knows nothing, are the
	// database's.
	for _, c := range []call{
		post("a", body("amount", "1")), to(open+"/cancel", "f", ""), to(paid+"/refunds", "c", `{"amount":301}`),
	} {
		wantProblem(t, w.send(t, c), "/problems/idempotency-key-reused")
	}
	clear(cache.records)
	answered := cache.answers
	for i, test := range all {
		wantReplay(t, answers[i], w.send(t, test.call))
	}
	if cache.answers != answered {
		t.Errorf("it answered for %d requests of which it knew nothing", cache.answers-answered)
	}
	wantRows(t, w.db, before, nil)

	// What was refused before the key is not in it either.
	clear(cache.records)
	for _, r := range w.routes(t) {
		for _, fault := range r.faults() {
			w.send(t, fault.call)
		}
	}
	if n := len(cache.records); n != 2 { // of the two charges that routes asks for
		t.Errorf("%d records: %v", n, cache.records)
	}
	w.api.Close()
	if a := w.send(t, all[0].call); a.status != http.StatusServiceUnavailable {
		t.Errorf("without the store no API key is valid, and yet: %d %s", a.status, a.body)
	}
}

// A commit with an unknown outcome is answered 503, and the same request under the same key
// finds out. It is carried out once.
func TestUnknownCommit_isResolvedByItsKey(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		side     failpoint.Side
		replayed bool
	}{
		"that was made": {failpoint.After, true},
		"that was not":  {failpoint.Before, false},
	} {
		for i, kind := range []string{"a charge", "a cancellation", "a refund"} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				address := testdb.URL(t)
				direct := serveOn(t, testdb.OpenAt(t, address, postgres.Options{}))
				r := direct.routes(t)[i]
				before := rows(t, direct.db)
				proxy := failpoint.StartCutter(t, address)
				cut := serveOn(t, testdb.OpenAt(t, proxy.URL(), postgres.Options{MaxConns: 1}))
				proxy.ArmLast(test.side, 3) // nothing else has so many statements
				a := cut.send(t, r.under("key"))
				if proxy.Cuts() != 1 {
					t.Fatalf("%d connections were cut: status %d: %s", proxy.Cuts(), a.status, a.body)
				}
				wantProblem(t, a, "/problems/unavailable")

				again := direct.accepted(t, r.under("key"))
				if replayed := again.header.Get("Idempotent-Replayed") == "true"; replayed != test.replayed {
					t.Errorf("replayed %t, want %t: %s", replayed, test.replayed, again.body)
				}
				wantRows(t, direct.db, before, r.adds)
			})
		}
	}
}
