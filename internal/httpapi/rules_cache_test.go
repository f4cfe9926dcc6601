package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/httpapi"
)

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

func TestRulesACacheAnswersReplaysAndNothingElse(t *testing.T) {
	t.Parallel()
	cache := &memory{records: map[string]idempotency.Record{}}
	w := serveWith(t, func(api *httpapi.Config) { api.Intake.Keys.Cache = cache })
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
		t.Errorf("without the store nobody is known, and yet: %d %s", a.status, a.body)
	}
}
