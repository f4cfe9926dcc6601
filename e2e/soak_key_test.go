package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/testrun"
)

// soakSameKey has many clients use the same few keys, for one of two orders each,
// while apis and workers are killed. Every call and what came of it is written
// down, and of each key the whole history must have an order in which the key is
// set once, by one order, and has one answer ever after. In the short form a data race
// of the programs fails it too, with -every.
func soakSameKey(t *testing.T) {
	t.Helper()
	const clients = 64
	n, every := soaked(t, "operations", 100_000, 300), 250*time.Millisecond
	if *soak {
		every = 2 * time.Second
	}
	d := deploy(t, setup{apis: 2, workers: 2, apiEnv: map[string]string{"IN_FLIGHT": "409"}, detectRaces: !*soak})
	d.slowCommits(t)
	r := newKeyring(t, d, n)
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() { r.use(t, client) })
	}
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }()
	for victims, running := d.services(), true; running; {
		select {
		case <-over:
			running = false
		case <-time.After(every):
			victim := victims[int(r.kills.Load())%len(victims)]
			kill(t, victim)
			restart(t, victim)
			r.kills.Add(1)
		}
	}
	kills := r.kills.Load()
	r.settle(t)
	d.drain(t)
	if r.tally[keyUnknown] == 0 || kills == 0 {
		t.Errorf("%d kills left %d calls without a certain answer: they showed nothing", kills, r.tally[keyUnknown])
	}
	keys := r.check(t)
	t.Logf("%d operations on %d keys by %d clients, %d kills: %v", len(r.history), keys, clients, kills, r.tally)
	if !t.Failed() {
		t.Logf("linearizability by key: %s; %s", none(keys, "keys"), none(len(r.history), "operations"))
	}
}

// slowCommits gives each commit of the apis the time in which others can find its
// key in flight, and in which it can be killed: longer than they wait for a lock.
func (d *deployment) slowCommits(t *testing.T) {
	t.Helper()
	if !row[bool](t, d.tables, `select current_setting('is_superuser')::boolean`) {
		t.Log("not run: commits that take long, which only a superuser may ask for")
		return
	}
	api := "alter role " + quoted(d.server.logins+"api") + " in database " + quoted(d.database)
	execute(t, d.tables, api+" set commit_delay = 40000") // microseconds
	execute(t, d.tables, api+" set commit_siblings = 0")
	restart(t, d.APIs...)
}

// keyring are the keys of a soak, the two orders of each, and what was done with
// them.
type keyring struct {
	d          *deployment
	random     *rand.Rand
	began      time.Time
	operations int // that are wanted
	keys       []orders
	kills      atomic.Int64

	mu      sync.Mutex
	history []operation
	tally   map[keyKind]int
}

// orders are the two that one key is used for.
type orders struct {
	key  string
	a, b []byte
}

const (
	keysInUse  = 8  // at a time
	usesOfAKey = 50 // until another one takes its place; now and then it is used again
)

func newKeyring(t *testing.T, d *deployment, operations int) *keyring {
	t.Helper()
	r := &keyring{d: d, random: testrun.Rand(t), began: time.Now(), operations: operations, tally: map[keyKind]int{}}
	for range operations/usesOfAKey + keysInUse {
		r.keys = append(r.keys, orders{key: "key-" + unique(), a: newOrder(visa).body(t), b: newOrder(cardDeclined).body(t)})
	}
	return r
}

// next is a call of a client with one of the keys in use, and sometimes one that was; false when there
// was enough. However fast the traffic is, it lasts for some kills, and for as many more as it takes until
// one leaves a call without a certain answer. A few hundred of them that cut no call off are no luck any more.
func (r *keyring) next(client int) (o operation, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kills := r.kills.Load()
	if more = len(r.history) < r.operations || kills < 4 || r.tally[keyUnknown] == 0 && kills < 300; !more {
		return o, false
	}
	first := min(len(r.history)/usesOfAKey, len(r.keys)-keysInUse)
	o = operation{client: client, key: first + r.random.IntN(keysInUse), call: []keyCall{orderA, orderA, orderB, readKey}[r.random.IntN(4)]}
	if first > 0 && r.random.IntN(20) == 0 {
		o.key = r.random.IntN(first)
	}
	return o, true
}

// use is one client.
func (r *keyring) use(t *testing.T, client int) {
	t.Helper()
	for o, more := r.next(client); more && t.Context().Err() == nil; o, more = r.next(client) {
		err := r.operate(t.Context(), o)
		for ; isRefused(err); err = r.operate(t.Context(), o) {
			pause(t.Context(), 5*time.Millisecond)
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// isRefused reports whether a call was never sent: no api listened.
func isRefused(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// operate makes a call and records it with what its answer means. What was cut, timed
// out or is 503 is unknown; an error is an answer that may not be. It goes past the
// client's own notes, which would grow with every call.
func (r *keyring) operate(ctx context.Context, o operation) error {
	k := &r.keys[o.key]
	send := request{Key: k.key, Body: k.a}
	switch o.call {
	case orderA:
	case orderB:
		send.Body = k.b
	case readKey:
		send = request{Method: http.MethodGet, Path: "/v1/idempotency-keys/" + k.key}
	}
	o.began = time.Since(r.began)
	got, err := r.d.client.Do(ctx, send)
	if isRefused(err) {
		return err
	}
	o.kind = keyUnknown
	if err == nil && got.Status != http.StatusServiceUnavailable {
		if o.keyOutput = meaning(o.call, got); o.kind == keyUnknown {
			return fmt.Errorf("%s of %s: answered %d %s", o.call, k.key, got.Status, got.Body)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	o.ended = time.Since(r.began)
	r.tally[o.kind]++
	r.history = append(r.history, o)
	return nil
}

// meaning is what an answer says of its key: keyUnknown where the call may not be answered so.
func meaning(call keyCall, got answer) keyOutput {
	problem := func(kind string) bool { return bytes.Contains(got.Body, []byte("/problems/"+kind)) }
	switch reads := call == readKey; {
	case reads && got.Status == http.StatusNotFound:
		return keyOutput{kind: keyAbsent}
	case reads && got.Status == http.StatusOK:
		var page struct {
			Data []struct{ Location string }
		}
		if err := json.Unmarshal(got.Body, &page); err == nil && len(page.Data) == 1 {
			return keyOutput{kind: keyFound, id: path.Base(page.Data[0].Location)}
		}
	case reads:
	case got.Status == http.StatusConflict && problem("idempotency-key-in-use"):
		return keyOutput{kind: keyInFlight}
	case got.Status == http.StatusUnprocessableEntity && problem("idempotency-key-reused"):
		return keyOutput{kind: keyReused}
	case got.Status == http.StatusAccepted:
		out := keyOutput{kind: keyFirst, id: path.Base(got.Header.Get("Location")), body: string(got.Body)}
		if got.Header.Get("Idempotent-Replayed") == "true" {
			out.kind = keyReplay
		}
		return out
	}
	return keyOutput{kind: keyUnknown}
}

// settle requests each key that was used until it is answered, so the client has
// recorded what was accepted. The last word on the key belongs to its history.
func (r *keyring) settle(t *testing.T) {
	t.Helper()
	used := map[int]bool{}
	for _, o := range r.history {
		used[o.key] = used[o.key] || o.call != readKey
	}
	for i, posted := range used {
		if !posted {
			continue
		}
		k := r.keys[i]
		got := r.d.insist(t, request{Key: k.key, Body: k.a})
		if got.Status == http.StatusUnprocessableEntity {
			got = r.d.insist(t, request{Key: k.key, Body: k.b})
		}
		if err := r.operate(t.Context(), operation{key: i, call: readKey}); err != nil || got.Status != http.StatusAccepted {
			t.Errorf("key %s: %d %s, %v", k.key, got.Status, got.Body, err)
		}
	}
}
