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

	"github.com/anishathalye/porcupine"

	"github.com/payonce/payonce/internal/testrun"
)

func soakSameKey(t *testing.T) {
	t.Helper()
	n := soaked(t, "operations", 100_000, 800)
	every := 2 * time.Second
	if !*soak {
		every = 300 * time.Millisecond
	}
	oneAnswer(t, setup{}, n, every)
}

// oneAnswer has many clients use the same few keys, for one of two orders each,
// while apis and workers are killed. Every call and what came of it is written
// down, and of each key the whole history must have an order in which the key is
// set once, by one order, and has one answer ever after.
func oneAnswer(t *testing.T, s setup, n int, every time.Duration) {
	t.Helper()
	const clients = 64
	s.apis, s.workers, s.apiEnv = 2, 2, map[string]string{"IN_FLIGHT": "409"}
	d := deploy(t, s)
	d.slowCommits(t)
	r := newKeyring(t, d, n)
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() { r.use(t, client) })
	}
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }()
	d.killing(t, every, over, &r.kills)
	kills := int(r.kills.Load())
	r.settle(t)
	d.drain(t)

	if r.tally[keyUnknown] == 0 || kills == 0 {
		t.Errorf("%d kills left %d calls without a certain answer: they showed nothing", kills, r.tally[keyUnknown])
	}
	checked := r.check(t)
	t.Logf("%d operations on %d keys by %d clients, %d kills: %v; %d calls met no api and are no operations",
		len(r.history), checked, clients, kills, r.tally, r.refused.Load())
	if !t.Failed() {
		t.Logf("linearizability by key: %s; %s", none(checked, "keys"), none(len(r.history), "operations"))
	}
}

// slowCommits gives each commit of the apis the time in which others can find its
// key in flight, and in which it can be killed: longer than they wait for a lock.
func (d *deployment) slowCommits(t *testing.T) {
	t.Helper()
	if !row[bool](t, d, `select current_setting('is_superuser')::boolean`) {
		t.Log("not run: commits that take long, which only a superuser may ask for")
		return
	}
	api := "alter role " + quoted(d.server.logins+"api") + " in database " + quoted(row[string](t, d, `select current_database()`))
	d.exec(t, api+" set commit_delay = 40000") // microseconds
	d.exec(t, api+" set commit_siblings = 0")
	restart(t, d.APIs...)
}

// killing kills one program after another, again and again, until the traffic is over.
func (d *deployment) killing(t *testing.T, every time.Duration, over <-chan struct{}, kills *atomic.Int64) {
	t.Helper()
	victims := d.services()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
		}
		victim := victims[int(kills.Load())%len(victims)]
		kill(t, victim)
		restart(t, victim)
		kills.Add(1)
	}
}

// keyring are the keys of a soak, the two orders of each, and what was done with
// them.
type keyring struct {
	d       *deployment
	random  *rand.Rand
	began   time.Time
	left    atomic.Int64
	kills   atomic.Int64
	refused atomic.Int64 // calls that no api was there to take

	mu      sync.Mutex
	keys    []orders
	history []porcupine.Operation
	tally   map[keyKind]int
}

// orders are the two that one key is used for.
type orders struct {
	key  string
	a, b []byte
	uses int
}

const (
	keysInUse  = 8  // at a time
	usesOfAKey = 50 // until another one takes its place; now and then it is used again
)

func newKeyring(t *testing.T, d *deployment, operations int) *keyring {
	t.Helper()
	r := &keyring{d: d, random: testrun.Rand(t), began: time.Now(), tally: map[keyKind]int{}}
	r.left.Store(int64(operations))
	for range operations/usesOfAKey + keysInUse {
		r.keys = append(r.keys, orders{key: "key-" + unique(), a: newOrder(visa).body(t), b: newOrder(cardDeclined).body(t)})
	}
	return r
}

// pick is one of the keys in use, and sometimes one that was.
func (r *keyring) pick() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := 0
	for first < len(r.keys)-keysInUse && r.keys[first].uses >= usesOfAKey {
		first++
	}
	i := first + r.random.IntN(keysInUse)
	if first > 0 && r.random.IntN(20) == 0 {
		i = r.random.IntN(first)
	}
	r.keys[i].uses++
	return i
}

// use is one client. However fast the traffic is, it lasts for some kills, and for
// as many more as it takes until one leaves a call without a certain answer.
func (r *keyring) use(t *testing.T, client int) {
	t.Helper()
	ctx := t.Context()
	for (r.left.Add(-1) >= 0 || r.wantsKills()) && ctx.Err() == nil {
		in := keyInput{key: r.pick(), call: []keyCall{orderA, orderA, orderB, readKey}[r.random.IntN(4)]}
		for err := r.operate(ctx, client, in); err != nil; err = r.operate(ctx, client, in) {
			if !isRefused(err) {
				t.Error(err)
				return
			}
			r.refused.Add(1)
			pause(ctx, 5*time.Millisecond)
		}
	}
}

// wantsKills reports whether the kills so far may have shown nothing. A few hundred
// of them that cut no call off are no luck any more.
func (r *keyring) wantsKills() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	kills := r.kills.Load()
	return kills < 4 || r.tally[keyUnknown] == 0 && kills < 300
}

// isRefused reports whether a call was never sent: no api listened.
func isRefused(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// operate makes a call and records it with what its answer means. What was cut, timed
// out or is 503 is unknown; an error is an answer that may not be. It goes past the
// client's own notes, which would grow with every call.
func (r *keyring) operate(ctx context.Context, client int, in keyInput) error {
	k := &r.keys[in.key]
	send := request{body: k.a, header: http.Header{"Idempotency-Key": {k.key}}}
	switch in.call {
	case orderA:
	case orderB:
		send.body = k.b
	case readKey:
		send = request{method: http.MethodGet, path: "/v1/idempotency-keys/" + k.key}
	}
	began := time.Since(r.began).Nanoseconds()
	got, err := r.d.client.do(ctx, send)
	if isRefused(err) {
		return err
	}
	out := keyOutput{kind: keyUnknown}
	if err == nil && got.Status != http.StatusServiceUnavailable {
		if out, err = meaning(in.call, got); err != nil {
			return fmt.Errorf("%s of %s: %w", in.call, k.key, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally[out.kind]++
	r.history = append(r.history, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: began, Return: time.Since(r.began).Nanoseconds()})
	return nil
}

// meaning is what an answer says of its key.
func meaning(call keyCall, got answer) (keyOutput, error) {
	reads := call == readKey
	problem := func(kind string) bool { return bytes.Contains(got.Body, []byte("/problems/"+kind)) }
	switch {
	case reads && got.Status == http.StatusNotFound:
		return keyOutput{kind: keyAbsent}, nil
	case reads && got.Status == http.StatusOK:
		var page struct {
			Data []struct {
				Location string `json:"location"`
			} `json:"data"`
		}
		if err := json.Unmarshal(got.Body, &page); err == nil && len(page.Data) == 1 {
			return keyOutput{kind: keyFound, id: path.Base(page.Data[0].Location)}, nil
		}
	case !reads && got.Status == http.StatusConflict && problem("idempotency-key-in-use"):
		return keyOutput{kind: keyInFlight}, nil
	case !reads && got.Status == http.StatusUnprocessableEntity && problem("idempotency-key-reused"):
		return keyOutput{kind: keyReused}, nil
	case !reads && got.Status == http.StatusAccepted:
		out := keyOutput{kind: keyFirst, id: path.Base(got.Header.Get("Location")), body: string(got.Body)}
		if got.Header.Get("Idempotent-Replayed") == "true" {
			out.kind = keyReplay
		}
		return out, nil
	}
	return keyOutput{}, fmt.Errorf("answered %d %s", got.Status, got.Body)
}

// settle requests each key that was used until it is answered, so the client has
// recorded what was accepted. The last word on the key belongs to its history.
func (r *keyring) settle(t *testing.T) {
	t.Helper()
	for i, k := range r.keys {
		if k.uses == 0 {
			continue
		}
		got := r.d.insist(t, request{key: k.key, body: k.a})
		if got.Status == http.StatusUnprocessableEntity {
			got = r.d.insist(t, request{key: k.key, body: k.b})
		}
		if err := r.operate(t.Context(), 0, keyInput{key: i, call: readKey}); err != nil || got.Status != http.StatusAccepted {
			t.Errorf("key %s: %d %s, %v", k.key, got.Status, got.Body, err)
		}
	}
}
