package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/testrun"
)

// soakSameKey has many clients use the same few keys, for one of two orders each,
// while apis and workers are killed. What each answer says of its key must agree with
// all that was said before: the calls of a key have an order in which it is
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
	for range clients {
		all.Go(func() { r.use(t) })
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
	keys := 0
	for _, k := range r.keys {
		keys += min(1, len(k.said))
		if !k.explained() {
			t.Errorf("key %s was set by no call: %q", k.key, k.said)
		}
	}
	t.Logf("%d operations on %d keys by %d clients, %d kills: %v", r.done, keys, clients, kills, r.tally)
	if !t.Failed() {
		t.Logf("linearizability by key: %s; %s", none(keys, "keys"), none(r.done, "operations"))
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

// keyring are the keys of a soak.
type keyring struct {
	d          *deployment
	random     *rand.Rand
	operations int // that are wanted
	keys       []*usedKey
	kills      atomic.Int64

	mu    sync.Mutex // of the keys too
	done  int        // operations
	tally map[keyKind]int
}

const (
	keysInUse  = 8  // at a time
	usesOfAKey = 50 // until another one takes its place; now and then it is used again
)

func newKeyring(t *testing.T, d *deployment, operations int) *keyring {
	t.Helper()
	r := &keyring{d: d, random: testrun.Rand(t), operations: operations, tally: map[keyKind]int{}}
	for range operations/usesOfAKey + keysInUse {
		r.keys = append(r.keys, &usedKey{
			key: "key-" + unique(), a: newOrder(visa).body(t), b: newOrder(cardDeclined).body(t), unanswered: map[keyCall]int{},
		})
	}
	return r
}

// next is a call of a client with one of the keys in use, and sometimes one that was; false when there
// was enough. However fast the traffic is, it lasts for some kills, and for as many more as it takes until
// one leaves a call without a certain answer. A few hundred of them that cut no call off are no luck any more.
func (r *keyring) next() (o operation, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kills := r.kills.Load()
	if more = r.done < r.operations || kills < 4 || r.tally[keyUnknown] == 0 && kills < 300; !more {
		return o, false
	}
	first := min(r.done/usesOfAKey, len(r.keys)-keysInUse)
	o = operation{usedKey: r.keys[first+r.random.IntN(keysInUse)], call: []keyCall{orderA, orderA, orderB, readKey}[r.random.IntN(4)]}
	if first > 0 && r.random.IntN(20) == 0 {
		o.usedKey = r.keys[r.random.IntN(first)]
	}
	return o, true
}

// use is one client.
func (r *keyring) use(t *testing.T) {
	t.Helper()
	for o, more := r.next(); more && t.Context().Err() == nil; o, more = r.next() {
		if err := r.operate(t.Context(), o); err != nil {
			t.Error(err)
			return
		}
	}
}

// operate makes a call, when an api listens, and compares what its answer means with what is known of the key. What
// was cut, timed out or is 503 is unknown; an error is an answer that may not be. It goes past the client's own
// notes, which would grow with every call.
func (r *keyring) operate(ctx context.Context, o operation) error {
	r.mu.Lock()
	wasSet := o.set
	r.mu.Unlock()
	call := map[keyCall]request{
		orderA: {Key: o.key, Body: o.a}, orderB: {Key: o.key, Body: o.b},
		readKey: {Method: http.MethodGet, Path: "/v1/idempotency-keys/" + o.key},
	}[o.call]
	got, err := r.d.client.Do(ctx, call)
	for dial := new(net.OpError); errors.As(err, &dial) && dial.Op == "dial" && ctx.Err() == nil; { // it was never sent
		pause(ctx, 5*time.Millisecond)
		got, err = r.d.client.Do(ctx, call)
	}
	o.kind = keyUnknown
	if err == nil && got.Status != http.StatusServiceUnavailable && !o.means(got) {
		return fmt.Errorf("%s of %s: answered %d %s", o.call, o.key, got.Status, got.Body)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally[o.kind]++
	r.done++
	if !o.agrees(wasSet) {
		return fmt.Errorf("key %s: the last of its answers contradicts the others: %q", o.key, o.said)
	}
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
		o.kind, o.now = keyFound, path.Base(page.Data[0].Location)
	case got.Status == http.StatusConflict && problem("idempotency-key-in-use"):
		o.kind = keyInFlight
	case got.Status == http.StatusUnprocessableEntity && problem("idempotency-key-reused"):
		o.kind = keyReused
	case got.Status == http.StatusAccepted:
		o.kind, o.now, o.text = keyFirst, path.Base(got.Header.Get("Location")), string(got.Body)
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
	for _, k := range r.keys {
		if !k.posted {
			continue
		}
		got := r.d.insist(t, request{Key: k.key, Body: k.a})
		if got.Status == http.StatusUnprocessableEntity {
			got = r.d.insist(t, request{Key: k.key, Body: k.b})
		}
		if err := r.operate(t.Context(), operation{usedKey: k, call: readKey}); err != nil || got.Status != http.StatusAccepted {
			t.Errorf("key %s: %d %s, %v", k.key, got.Status, got.Body, err)
		}
	}
}

// keyCall is what is done with a key.
type keyCall string

const (
	orderA  keyCall = "A" // a post
	orderB  keyCall = "B"
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
	*usedKey

	call      keyCall
	kind      keyKind
	now, text string // the charge and the body that the answer has
}

// usedKey is a key that is used for two orders, and what its answers have said so far.
type usedKey struct {
	key        string
	a, b       []byte
	posted     bool
	set        bool            // an answer shows it
	firsts     int             // answers that say that their call has set it
	unanswered map[keyCall]int // posts without a certain answer: one of them may have set it
	order      keyCall         // by which it is set, as far as that is known
	id, body   string          // of the charge, and of a 202, as far as they are known
	said       []string
}

// agrees reports whether an answer is true of a key that is set once. A call that began when an answer had shown
// the key to be set finds it so.
func (o *operation) agrees(wasSet bool) bool {
	k, order := o.usedKey, o.call
	k.said = append(k.said, fmt.Sprintf("%s → %s %s", o.call, o.kind, o.now))
	k.posted = k.posted || o.call != readKey
	switch o.kind {
	case keyUnknown:
		if o.call != readKey {
			k.unanswered[o.call]++
			k.unanswered[""]++
		}
		return true
	case keyInFlight, keyAbsent:
		return !wasSet
	case keyFirst:
		if k.firsts++; wasSet || k.firsts > 1 {
			return false
		}
	case keyReused:
		order = map[keyCall]keyCall{orderA: orderB, orderB: orderA}[o.call]
	case keyFound:
		order = "" // of either
	case keyReplay:
	}
	k.set = true
	return agree(&k.order, order) && agree(&k.id, o.now) && agree(&k.body, o.text)
}

// explained reports whether a key was set by a call that is known, when all calls have ended.
func (k *usedKey) explained() bool { return !k.set || k.firsts > 0 || k.unanswered[k.order] > 0 }

// agree reports whether an answer shows what is known, where both say anything.
func agree[T ~string](known *T, shown T) bool {
	*known = cmp.Or(*known, shown)
	return shown == "" || shown == *known
}

// TestUsedKey plants histories that no correct service could have, in the order of the answers, beside those that it may.
// A call with ~ began before any other was answered.
func TestUsedKey(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, history string
		want          bool
	}{
		{"one first answer, its replays, and another order refused", "B in-flight, read absent, A first 1, read found 1, B reused, ~A replayed 1", true},
		{"an unknown call that took effect", "A unknown, read found 1, A replayed 1", true},
		{"an unknown call that took none", "A unknown, B first 1, A reused", true},
		{"an unknown call that took effect long after", "A unknown, read absent, B reused, A replayed 1", true},
		{"unknown calls of both orders, of which the later one took effect", "A unknown, B unknown, A unknown, B replayed 1", true},
		{"a late answer to what was in flight", "A first 1, ~B in-flight, ~read absent", true},
		{"two different first answers", "A first 1, A first 2", false},
		{"two first answers at once", "A first 1, ~A first 1", false},
		{"a first answer that was lost", "A first 1, read absent", false},
		{"a lost one whose key serves another order", "A first 1, B first 2", false},
		{"a replay of what was never answered", "A replayed 1", false},
		{"a first answer after a replay", "A replayed 1, A first 1", false},
		{"a replay with another body", "A first 1, A replayed 2", false},
		{"one unknown call that has set the key for both orders", "A unknown, A replayed 1, B replayed 1", false},
		{"in flight after the answer was given", "A first 1, A in-flight", false},
		{"refused as another order's while the key is free", "A reused, read absent", false},
	} {
		k, agrees := &usedKey{unanswered: map[keyCall]int{}}, true
		for one := range strings.SplitSeq(test.history, ", ") {
			o := &operation{usedKey: k}
			one, early := strings.CutPrefix(one, "~")
			if n, err := fmt.Sscan(one, &o.call, &o.kind, &o.now); n < 2 {
				t.Fatalf("%q: %v", one, err)
			}
			if o.kind == keyFirst || o.kind == keyReplay {
				o.text = "body of " + o.now
			}
			agrees = o.agrees(k.set && !early) && agrees
		}
		if got := agrees && k.explained(); got != test.want {
			t.Errorf("%s: a correct service may answer so: %v, want %v", test.name, got, test.want)
		}
	}
}
