package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// zombie pauses a worker that is about to take the money until its rival has
// done so and told the merchant; then it wakes up.
func zombie(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 2, gated: true})
	paused, release, answered := make(chan int, 1), make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	asleep := -1
	w.gates.set(func(p passage) bool {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case p.call == "confirm" && p.side == before && asleep < 0:
			asleep = p.worker
			if err := w.workers[p.worker].Pause(); err != nil {
				t.Error(err)
			}
			paused <- p.worker
			mu.Unlock()
			held(t, release)
			mu.Lock()
		case p.call == "confirm" && p.side == after && p.worker == asleep:
			close(answered)
		}
		return true
	})
	id := w.send(t, newOrder(visa)).ID
	z := next(t, "a worker comes to confirm the payment", paused)
	w.arrives(t, ways()[0], id)
	const state = `
select concat_ws(' ',
         (select string_agg(concat_ws(' ', receiver, status, 'attempts', attempts, 'fence', fence, 'done by', done_fence, holder), ', ' order by id)
            from inbox
           where ordering_key = $1),
         (select string_agg(concat_ws(' ', version, type, event_id), ', ' order by version)
            from ledger_events
           where stream_id = $1))`
	then := row[string](t, w, state, id)

	close(release)
	next(t, "the provider answers the zombie", answered)
	if err := w.workers[z].Resume(); err != nil {
		t.Fatal(err)
	}
	const message = `
select message_id
  from inbox
 where ordering_key = $1
   and receiver = 'fulfillment'`
	messageID := row[string](t, w, message, id)
	// It warns about the message when its renewal or its commit is refused.
	eventually(t, "the zombie learns that it lost its lease", func() bool {
		log, err := os.ReadFile(filepath.Join(w.log, w.workers[z].Name()+".log"))
		if err != nil {
			return false
		}
		for line := range bytes.Lines(log) {
			if bytes.HasSuffix(line, []byte("\n")) {
				if e := mustBeLog(t, "worker", line); e.MessageID == messageID && e.Level == "WARN" {
					return true
				}
			}
		}
		return false
	})
	w.arrives(t, ways()[0], id)
	if diff := cmp.Diff(then, row[string](t, w, state, id)); diff != "" {
		t.Errorf("the zombie changed what its rival had finished (-before +after):\n%s", diff)
	}
	const fences = `
select attempts >= 2 and fence >= 2 and done_fence = fence
  from inbox
 where message_id = $1`
	if !row[bool](t, w, fences, messageID) {
		t.Errorf("its message was not done by a second holder: %s", row[string](t, w, state, id))
	}
}

// held keeps a request at a gate, until it is released or the test is over.
func held(t *testing.T, release <-chan struct{}) {
	t.Helper()
	select {
	case <-release:
	case <-t.Context().Done():
	}
}

// releases stops a worker while the provider does not answer it.
func releases(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 1, gated: true})
	hanging := make(chan struct{}, 1)
	w.gates.set(func(p passage) bool {
		if p.call != "confirm" || p.side != before {
			return true
		}
		select {
		case hanging <- struct{}{}:
		default:
		}
		held(t, nil)
		return false
	})
	id := w.send(t, newOrder(visa)).ID
	next(t, "the worker asks for the money", hanging)
	stop(t, w.workers[0])
	const released = `
select concat_ws(' ', status, attempts, due_at <= clock_timestamp())
  from inbox
 where ordering_key = $1`
	if got := row[string](t, w, released, id); got != "pending 0 t" {
		t.Errorf("its message is %q, want it pending, without an attempt, and due", got)
	}
	w.gates.open()
	restart(t, w.workers[0])
	w.arrives(t, ways()[0], id)
}
