package e2e_test

import (
	"bytes"
	"flag"
	"net/http"
	"strings"
	"sync"
	"testing"
)

//nolint:gochecknoglobals // a flag of the tests
var raceRounds = flag.Int("rounds", 0, "rounds of TestRace; 0 for a few")

// TestRace sends one request under one key 64 times at once, to two apis, round
// after round: there is one charge in each, and every answer is that charge, byte
// for byte, or says that the request is in flight.
func TestRace(t *testing.T) {
	t.Parallel()
	long(t)
	const clients = 64
	w := newWorld(t, setup{apis: 2})
	rounds := *raceRounds
	if rounds == 0 {
		rounds = 40
	}
	var firsts, replays, inFlight int
	for range rounds {
		r := request{key: "key-" + unique(), body: newOrder(visa).body(t)}
		answers := make([]answer, clients)
		start := make(chan struct{})
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				<-start
				var err error
				if answers[i], err = w.client.try(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		all.Wait()
		var body []byte
		made := 0
		for _, a := range answers {
			switch {
			case a.Status == http.StatusConflict && strings.Contains(string(a.Body), "idempotency-key-in-use"):
				inFlight++
				continue
			case a.Status != http.StatusAccepted:
				t.Fatalf("answered %d %s", a.Status, a.Body)
			case body != nil && !bytes.Equal(body, a.Body):
				t.Fatalf("two answers: %s and %s", body, a.Body)
			}
			body = a.Body
			if a.Header.Get("Idempotent-Replayed") == "true" {
				replays++
			} else {
				made++
			}
		}
		if made > 1 || body == nil {
			t.Fatalf("%d of %d say that they made the charge", made, clients)
		}
		firsts += made
	}
	const kept = `
select concat_ws(' ',
         (select count(*) from idempotency_keys),
         (select count(*) from ledger_events),
         (select count(*) from outbox))`
	if got, want := row[string](t, w, kept), spaced(rounds, rounds, rounds); got != want {
		t.Errorf("keys, events and messages are %s, want %s", got, want)
	}
	t.Logf("%d rounds of %d requests: %d charges, %d first answers, %d replays, %d in flight", rounds, clients, rounds, firsts, replays, inFlight)
}
