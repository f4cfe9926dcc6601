package e2e_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// way is a charge whose worker is killed, with all that it asks of the outside.
type way struct {
	name   string
	method string
	status string
	steps  string
	calls  []string
}

func ways() []way {
	return []way{
		{"a charge that succeeds", visa, "succeeded", allDone, []string{"create", "confirm", "webhook"}},
		{"a charge that is declined", cardDeclined, "failed", givenBack, []string{"create", "confirm", "cancel", "webhook"}},
	}
}

// killedAtAnyStep kills the worker at each of its requests to the outside: before
// it was sent, and after its whole answer was there but nothing of it was seen.
// One worker is alive at a time, so that it is known who dies; the other one
// starts at the death and finishes the charge.
func killedAtAnyStep(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 2, gated: true})
	stop(t, w.workers[1])
	alive, runs := 0, 0
	for _, way := range ways() {
		w.gates.open()
		w.travels(t, way)
		if diff := cmp.Diff(way.calls, w.gates.forwarded()); diff != "" {
			t.Fatalf("%s: the walk is planned for other requests (-) than there are (+):\n%s", way.name, diff)
		}
		for _, call := range way.calls {
			for _, side := range []side{before, after} {
				if testing.Short() && (side == before || way.status == "failed" && call != "cancel") {
					continue
				}
				w.diesAt(t, way, passage{call: call, side: side}, &alive)
				runs++
			}
		}
	}
	t.Logf("a worker died at %d of %d points", runs, 2*(len(ways()[0].calls)+len(ways()[1].calls)))
}

// travels carries a charge to its outcome and checks it from all sides.
func (w *world) travels(t *testing.T, way way) string {
	t.Helper()
	id := w.send(t, newOrder(way.method)).ID
	w.arrives(t, way, id)
	return id
}

func (w *world) arrives(t *testing.T, way way, id string) {
	t.Helper()
	c := w.await(t, id)
	if c.Status != way.status || c.steps() != way.steps {
		t.Errorf("%s: %s is %s with %q", way.name, id, c.Status, c.steps())
	}
	captures, intents := 1, []string{"succeeded"}
	if way.status == "failed" {
		captures, intents = 0, []string{"canceled"}
	}
	e := w.books(t).of(id)
	if e.captures != captures || !cmp.Equal(e.intents, intents) {
		t.Errorf("%s: the books have %d captures and intents %q of %s, want %d and %q", way.name, e.captures, e.intents, id, captures, intents)
	}
	if len(e.told) != 1 || e.told[0].Effects != 1 || e.told[0].Type != "charge."+way.status {
		t.Errorf("%s: the merchant was told %+v of %s", way.name, e.told, id)
	}
}

func (w *world) diesAt(t *testing.T, way way, point passage, alive *int) {
	t.Helper()
	victim := w.workers[*alive]
	died := make(chan error, 1)
	planned := make(chan struct{}, 1)
	planned <- struct{}{}
	w.gates.set(func(p passage) bool {
		if p.call != point.call || p.side != point.side {
			return true
		}
		select {
		case <-planned:
			died <- victim.Kill()
			return false
		default:
			return true
		}
	})
	id := w.send(t, newOrder(way.method)).ID
	if err := next(t, "the worker comes to the point where it dies", died); err != nil {
		t.Fatal(err)
	}
	*alive = 1 - *alive
	restart(t, w.workers[*alive])
	w.arrives(t, way, id)

	where := way.name + ", killed " + string(point.side) + " " + point.call
	calls := w.gates.forwarded()
	count := func(call string) int {
		return len(slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return c != call }))
	}
	// A payment is confirmed once: whoever takes over asks before it confirms.
	if count("confirm") != 1 {
		t.Errorf("%s: the outside got %q", where, calls)
	}
	if point.side == after && point.call != "create" && point.call != "webhook" && count("retrieve") == 0 {
		t.Errorf("%s: the new holder did not ask how the payment stands: %q", where, calls)
	}
	const taken = `
select status = 'done' and attempts >= 2 and fence >= 2 and done_fence = fence
  from inbox
 where ordering_key = $1
   and receiver = $2`
	receiver := "fulfillment"
	if point.call == "webhook" {
		receiver = "notification"
	}
	if !row[bool](t, w, taken, id, receiver) {
		t.Errorf("%s: its message was not done by a second holder: %s; the outside got %q", where, w.messagesOf(t, id), calls)
	}
}
