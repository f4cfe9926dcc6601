package httpapi_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
)

// TestMoreRequestsThanConnections has many requests in flight over a pool of
// two: half of them under one key, half under keys of their own.
func TestMoreRequestsThanConnections(t *testing.T) {
	t.Parallel()
	const n = 40
	db := openWith(t, postgres.Options{MaxConns: 2})
	w := serveOn(t, db, nil)
	before := rows(t, db)
	var (
		mu       sync.Mutex
		answers  = map[string]map[string]bool{} // key → bodies
		replayed int
		inFlight sync.WaitGroup
	)
	for i := range n {
		for _, key := range []string{"shared", "own-" + strconv.Itoa(i)} {
			inFlight.Go(func() {
				a, err := w.try(t, post(key, body()))
				if err != nil || a.status != 202 {
					t.Errorf("key %s: status %d, %v: %s", key, a.status, err, a.body)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if answers[key] == nil {
					answers[key] = map[string]bool{}
				}
				answers[key][a.body] = true
				if a.header.Get("Idempotent-Replayed") == "true" {
					replayed++
				}
			})
		}
	}
	inFlight.Wait()
	for key, bodies := range answers {
		if len(bodies) != 1 {
			t.Errorf("key %s has %d answers", key, len(bodies))
		}
	}
	if len(answers) != n+1 || replayed != n-1 {
		t.Errorf("%d keys and %d replays, want %d and %d", len(answers), replayed, n+1, n-1)
	}
	added := ofOneCharge()
	for table := range added {
		added[table] *= n + 1
	}
	wantRows(t, db, before, added)
}
