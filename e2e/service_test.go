package e2e_test

import (
	"net/http"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/robustness/fleet"
)

// promise is something that the running service does for its callers.
type promise struct {
	name string
	keep func(*testing.T, *deployment)
}

func promises() []promise {
	all := []promise{
		{"a charge succeeds and is posted to the ledger", chargeSucceeds},
		{"of ten charges for the last piece one succeeds", lastPiece},
		{"64 requests under one key at once make one charge", sameRequestAtOnce},
		{"a replay shows what was accepted", replayAfterTheEnd},
		{"a refund returns a part, another one the rest", refundInParts},
		{"64 requests for one refund at once make one refund", sameRefundAtOnce},
		{"a provider event delivered 200 times is one event", repeatedProviderEvent},
		{"health and readiness need no API key", probesNeedNoKey},
	}
	for _, o := range outcomes() {
		all = append(all, promise{o.name, o.check})
	}
	return all
}

// TestService keeps every promise that needs no failure, on one deployment with two
// apis and two workers. Each promise uses charges and keys of its own.
func TestService(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 2, workers: 2, providerEvents: true, workerEnv: longLease(), stock: map[string]int{"poster": 1, "rarity": 0}})
	for _, p := range promises() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.keep(t, d)
		})
	}
}

// atOnce does something n times at once and returns the results.
func atOnce[T any](n int, do func() T) []T {
	results := make([]T, n)
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() {
			<-start
			results[i] = do()
		})
	}
	close(start)
	all.Wait()
	return results
}

// concurrently sends a request n times at once and returns the answers.
func concurrently(t *testing.T, d *deployment, n int, r request) []answer {
	t.Helper()
	return atOnce(n, func() answer {
		got, _, err := d.client.insist(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		return got
	})
}

// sameRequestAtOnce repeats the race for several keys: there is one charge for each,
// and every answer is that charge, byte for byte.
func sameRequestAtOnce(t *testing.T, d *deployment) {
	t.Helper()
	const rounds, clients = 6, 64
	for range rounds {
		o := newOrder(visa)
		r := request{key: "key-" + unique(), body: o.body(t)}
		answers := concurrently(t, d, clients, r)
		firsts := 0
		for _, a := range answers {
			if a.Status != http.StatusAccepted || string(a.Body) != string(answers[0].Body) {
				t.Fatalf("answered %d %s, want the bytes of another answer: %s", a.Status, a.Body, answers[0].Body)
			}
			if a.Header.Get("Idempotent-Replayed") == "" {
				firsts++
			}
			if a.Header.Get("Idempotency-Key") != r.key || a.Header.Get("Idempotency-Expires") == "" {
				t.Errorf("an answer to a request with a key has the headers %v", a.Header)
			}
		}
		// The first answer may have been lost with its connection, so none is legal.
		if firsts > 1 {
			t.Errorf("%d of %d answers are not marked as replays, want 1", firsts, clients)
		}
		mustRead(t, d, "1 key, 1 event, 1 message", `
with requested as (select event_id::text from ledger_events where version = 1 and data ->> 'order_id' = $2)
select format('%s key, %s event, %s message',
         (select count(*) from idempotency_keys where key = $1),
         (select count(*) from requested),
         (select count(*) from outbox where message_id in (table requested)))`, r.key, o.OrderID)
	}
}

func replayAfterTheEnd(t *testing.T, d *deployment) {
	t.Helper()
	r := request{key: "key-" + unique(), body: newOrder(cardDeclined).body(t)}
	first := d.insist(t, r)
	d.await(t, acceptedCharge(t, first).ID)
	for _, api := range d.client.apis {
		r.to = at(api)
		again := d.insist(t, r)
		if c := acceptedCharge(t, again); c.Status != "pending" || again.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("the replay says %s, replayed %q", c.Status, again.Header.Get("Idempotent-Replayed"))
		}
	}
	var now charge
	if d.get(t, first.Header.Get("Location"), &now); now.outcome() != "card_declined" {
		t.Errorf("at its location: %+v", now)
	}
}

func probesNeedNoKey(t *testing.T, d *deployment) {
	t.Helper()
	for _, p := range []*fleet.Process{d.APIs[0], d.Workers[0]} {
		mustAnswer(t, p, "/healthz", http.StatusOK)
		mustAnswer(t, p, "/readyz", http.StatusOK)
	}
}

func mustAnswer(t *testing.T, p *fleet.Process, path string, status int) {
	t.Helper()
	if got := fetch(t, p, path); got.Status != status {
		t.Errorf("%s of %s answers %d %s, want %d", path, p.Name(), got.Status, got.Body, status)
	}
}
