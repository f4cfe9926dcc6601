package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
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
	api := "alter role " + d.server.logins + "api in database " + d.database
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
	o.began = time.Since(r.began)
	got, err := r.d.client.Do(ctx, map[keyCall]request{
		orderA: {Key: k.key, Body: k.a}, orderB: {Key: k.key, Body: k.b},
		readKey: {Method: http.MethodGet, Path: "/v1/idempotency-keys/" + k.key},
	}[o.call])
	if isRefused(err) {
		return err
	}
	o.kind = keyUnknown
	if err == nil && got.Status != http.StatusServiceUnavailable && !o.means(got) {
		return fmt.Errorf("%s of %s: answered %d %s", o.call, k.key, got.Status, got.Body)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	o.ended = time.Since(r.began)
	r.tally[o.kind]++
	r.history = append(r.history, o)
	return nil
}

// means reads what an answer says of its key, and reports whether the call may be answered so.
func (o *operation) means(got answer) bool {
	problem := func(kind string) bool { return bytes.Contains(got.Body, []byte("/problems/"+kind)) }
	switch reads := o.call == readKey; {
	case reads && got.Status == http.StatusNotFound:
		o.kind = keyAbsent
	case reads:
		var page struct {
			Data []struct{ Location string }
		}
		if json.Unmarshal(got.Body, &page) != nil || len(page.Data) != 1 || got.Status != http.StatusOK {
			return false
		}
		o.kind, o.id = keyFound, path.Base(page.Data[0].Location)
	case got.Status == http.StatusConflict && problem("idempotency-key-in-use"):
		o.kind = keyInFlight
	case got.Status == http.StatusUnprocessableEntity && problem("idempotency-key-reused"):
		o.kind = keyReused
	case got.Status == http.StatusAccepted:
		o.kind, o.id, o.body = keyFirst, path.Base(got.Header.Get("Location")), string(got.Body)
		if got.Header.Get("Idempotent-Replayed") == "true" {
			o.kind = keyReplay
		}
	default:
		return false
	}
	return true
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

// keyCall is what is done with a key.
type keyCall string

const (
	orderA  keyCall = "post A"
	orderB  keyCall = "post B"
	readKey keyCall = "read"
)

// keyKind is what an answer says.
type keyKind string

const (
	keyUnknown  keyKind = "unknown"   // cut, timed out, or 503: it may have happened, or may yet
	keyFirst    keyKind = "first"     // 202: this call made the charge
	keyReplay   keyKind = "replayed"  // 202, as it was given before
	keyReused   keyKind = "reused"    // 422: the key is another order's
	keyInFlight keyKind = "in-flight" // 409: the key is being used, and has no answer yet
	keyFound    keyKind = "found"     // a read: the charge that the key led to
	keyAbsent   keyKind = "absent"    // a read: nothing
)

// operation is a call with a key, and what came of it.
type operation struct {
	client, key  int
	call         keyCall
	began, ended time.Duration // since the soak began
	kind         keyKind
	id           string // of the charge
	body         string // of a 202
}

// linearizable reports whether the calls of one key have an order. A key is set once, so no search is needed: all
// answers must agree on order, id and body, and there must be a moment at which the key was set, which is no later than
// the end of any call that shows it set, and no earlier than the begin of any call that shows it free. A first answer, which is given once, says which call has set the
// key. Without one it was a call without a certain answer, at any time after that began.
func linearizable(history []operation) bool {
	from, to, firsts := time.Duration(0), time.Duration(math.MaxInt64), 0 // of that moment
	unanswered := map[keyCall]time.Duration{}                             // the first begin, of each order and of any
	var set operation                                                     // what is shown of the key
	for _, o := range history {
		switch o.kind {
		case keyUnknown:
			for _, order := range []keyCall{o.call, ""} {
				if first, found := unanswered[order]; o.call != readKey && (!found || o.began < first) {
					unanswered[order] = o.began
				}
			}
			continue
		case keyInFlight, keyAbsent:
			from = max(from, o.began)
			continue
		case keyFirst:
			from, firsts = max(from, o.began), firsts+1
		case keyReused:
			o.call = map[keyCall]keyCall{orderA: orderB, orderB: orderA}[o.call]
		case keyFound:
			o.call = "" // of either order
		case keyReplay:
		}
		to = min(to, o.ended)
		if !agree(&set.call, o.call) || !agree(&set.id, o.id) || !agree(&set.body, o.body) {
			return false
		}
	}
	if firsts == 0 && to < math.MaxInt64 {
		began, found := unanswered[set.call]
		if !found {
			return false
		}
		from = max(from, began)
	}
	return firsts <= 1 && from <= to
}

// agree reports whether a call shows what is known, where both say anything.
func agree[T ~string](known *T, shown T) bool {
	*known = cmp.Or(*known, shown)
	return shown == "" || shown == *known
}

// check checks every key's history, and prints one that has no order. It returns how many keys
// there were.
func (r *keyring) check(t *testing.T) int {
	t.Helper()
	byKey := map[int][]operation{}
	for _, o := range r.history {
		byKey[o.key] = append(byKey[o.key], o)
	}
	for key, history := range byKey {
		if linearizable(history) {
			continue
		}
		slices.SortFunc(history, func(a, b operation) int { return cmp.Compare(a.began, b.began) })
		var lines strings.Builder
		for _, o := range history {
			fmt.Fprintf(&lines, "\n  %v to %v, client %d: %s → %s %s", o.began, o.ended, o.client, o.call, o.kind, o.id)
		}
		t.Fatalf("key %s: its %d operations have no order:%s", r.keys[key].key, len(history), lines.String())
	}
	return len(byKey)
}

// planted reads a history, such as "0-9 A first 1, 3-4 read absent".
func planted(t *testing.T, history string) (operations []operation) {
	t.Helper()
	calls := map[string]keyCall{"A": orderA, "B": orderB, "read": readKey}
	for one := range strings.SplitSeq(history, ", ") {
		var o operation
		var call string
		if n, err := fmt.Sscanf(one, "%d-%d %s %s %s", &o.began, &o.ended, &call, &o.kind, &o.id); n < 4 {
			t.Fatalf("%q: %v", one, err)
		}
		if o.call = calls[call]; o.kind == keyFirst || o.kind == keyReplay {
			o.body = "body of " + o.id
		}
		operations = append(operations, o)
	}
	return operations
}

// TestLinearizable plants histories that no correct service could have, beside
// those that it may: the checker must tell them apart.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, history string
		want          bool
	}{
		{"one first answer, its replays, and another order refused", "0-9 A first 1, 1-2 B in-flight, 3-4 read absent, 5-20 A replayed 1, 10-11 read found 1, 12-13 B reused", true},
		{"an unknown call that took effect", "0-1 A unknown, 2-3 read found 1, 4-5 A replayed 1", true},
		{"an unknown call that took none", "0-1 A unknown, 2-3 B first 1, 4-5 A reused", true},
		{"an unknown call that took effect long after", "0-1 A unknown, 2-3 read absent, 4-5 B reused, 6-7 A replayed 1", true},
		{"unknown calls of both orders, of which the later one took effect", "0-1 A unknown, 1-2 B unknown, 2-3 A unknown, 4-5 B replayed 1", true},
		{"two different first answers", "0-1 A first 1, 2-3 A first 2", false},
		{"two first answers at once", "0-5 A first 1, 1-4 A first 1", false},
		{"a first answer that was lost", "0-1 A first 1, 2-3 read absent", false},
		{"a lost one whose key serves another order", "0-1 A first 1, 2-3 B first 2", false},
		{"a replay of what was never answered", "0-1 A replayed 1", false},
		{"a replay with another body", "0-1 A first 1, 2-3 A replayed 2", false},
		{"one unknown call that has set the key for both orders", "0-1 A unknown, 2-3 A replayed 1, 4-5 B replayed 1", false},
		{"in flight after the answer was given", "0-1 A first 1, 2-3 A in-flight", false},
		{"refused as another order's while the key is free", "0-1 A reused, 2-3 read absent", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := linearizable(planted(t, test.history)); got != test.want {
				t.Errorf("the checker says %v, want %v", got, test.want)
			}
		})
	}
}
