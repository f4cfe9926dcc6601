package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

var soak = flag.Bool("soak", false, "TestSoak in its long form, which takes minutes")

// TestSoak does for long what other tests do once, while something is broken all
// the time. Without -soak each of them is short, and that of memory is run with -every
// alone; with -short none is run. In the long form give it time, one at a time:
//
//	go test ./e2e -run 'TestSoak/a_key' -soak -timeout 1h -v
func TestSoak(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"a key has one answer, whatever is killed":                  soakSameKey,
		"what was acknowledged survives every stop of the database": soakDatabase,
		"memory stays flat over messages and requests":              soakMemory,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startsPrograms(t)
			test(t)
		})
	}
}

// soaked is how much of something there is: the first number in the long form.
func soaked(t *testing.T, what string, long, short int) int {
	t.Helper()
	if *soak {
		return long
	}
	t.Logf("not run: the long form, with %d %s instead of %d (-soak)", long, what, short)
	return short
}

// none says what zero violations in n trials show: with 95% confidence there are
// fewer than 3 in n (the rule of three).
func none(n int, of string) string {
	return fmt.Sprintf("0 violations in %d %s, a bound of 3/n = %.1e", n, of, 3/float64(n))
}

// soakDatabase stops the server again and again while charges flow: at once,
// without a checkpoint, and by SIGKILL of its first process. What was acknowledged
// is requested once more at the end; the invariants require it once.
func soakDatabase(t *testing.T) {
	t.Helper()
	server, stops := testrun.Server(t, local.Options{Fsync: true, InMemory: true}), soaked(t, "stops", 100, 2)
	w := newUnderLoad(t, server.URL("postgres"), nil)
	mustRead(t, w.tables, "on on on", `select concat_ws(' ', current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'))`)
	w.lose(t, stops, func(int) {}, func() {
		const started = `select pg_postmaster_start_time()::text`
		before := row[string](t, w.tables, started)
		if w.lost%2 == 1 {
			must(t, syscall.Kill(firstProcess(t, w.tables), syscall.SIGKILL))
		}
		must(t, server.Restart(t.Context()))
		if row[string](t, w.tables, started) == before {
			t.Error("the server was not stopped")
		}
	})
	w.settle(t)
	t.Logf("none lost, none doubled, unless an error is above: %s; %s", none(w.client.count(), "charges"), none(stops, "stops"))
}

const (
	// heapSlack is how much the least heap of the second half may exceed that of the first, in
	// KiB. In the short form a leak of 1 KiB a message or a request comes to about twice as much.
	heapSlack = 1024
	// known is how many messages are repeated.
	known = 40
	// collectAt is by how many percent the heap of a program grows until it is collected.
	collectAt = 10
)

// soakMemory has a worker receive a few messages many times, and an api answer as many requests of
// each kind. What they hold must not grow with that.
func soakMemory(t *testing.T) {
	t.Helper()
	if !*soak {
		startsWithEvery(t, "it keeps the processors busy for half a minute")
	}
	n := soaked(t, "messages", 1_000_000, 4_000)
	often := map[string]string{"GOGC": strconv.Itoa(collectAt)}
	d := deploy(t, setup{apis: 1, workers: 1, apiEnv: often, workerEnv: often})
	f := d.flowing(t, known, 8, visa, cardDeclined)
	f.finish(t, d)
	d.drain(t)

	var clients sync.WaitGroup
	defer clients.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	heaps := map[*harness.Process]*[2][]int64{d.Workers[0]: {}, d.APIs[0]: {}} // after collections, in each half
	// A program that was just started is not yet as large as its work makes it.
	chunk := max(n/100, 400)
	for sent := 0; sent < n+n/10; sent += chunk {
		for i := range 2 {
			clients.Go(func() { d.replays(ctx, t, f.requests[i:], chunk/2) })
		}
		d.repeats(t, chunk)
		clients.Wait()
		for p, halves := range heaps {
			if sent >= n/10 {
				half := min(1, 2*(sent-n/10)/n)
				halves[half] = append(halves[half], liveHeap(t, p))
			}
		}
	}
	for p, halves := range heaps {
		first, second := slices.Min(halves[0]), slices.Min(halves[1])
		if second > first+heapSlack {
			t.Errorf("the heap of %s grew from %d KiB to %d, with a slack of %d", p.Name(), first, second, heapSlack)
		}
		t.Logf("the heap of %s held %d KiB at least in the first half and %d in the second", p.Name(), first, second)
	}
	t.Logf("%d messages and replays after %d that were not measured, %d messages of them received again",
		n, n/10, row[int64](t, d.tables, `select coalesce(sum(duplicates), 0)::bigint from inbox`))
}

// liveHeap is how much a program's heap held after its last collection, in KiB. The size at
// which the next collection begins says so.
func liveHeap(t *testing.T, p *harness.Process) (kib int64) {
	t.Helper()
	_, value, _ := strings.Cut(fetch(t, p.URL()+"/metrics"), "\ngo_memstats_next_gc_bytes ")
	var size float64
	if _, err := fmt.Sscan(value, &size); err != nil || size == 0 {
		t.Fatalf("%s does not say how large its heap is: %v", p.Name(), err)
	}
	return int64(size*100/(100+collectAt)) >> 10
}

// replays sends charges again that were accepted, and reads them, until n were answered.
func (d *deployment) replays(ctx context.Context, t *testing.T, charges []request, n int) {
	t.Helper()
	for sent, answered := 0, 0; answered < n && ctx.Err() == nil; sent++ {
		r := charges[sent%len(charges)]
		got, err := d.client.Do(ctx, request{Key: r.Key, Body: r.Body}) // past the client's notes, which would grow
		if err == nil && got.Status == http.StatusAccepted {
			got, err = d.client.Do(ctx, request{Method: http.MethodGet, Path: got.Header.Get("Location")})
		}
		switch {
		case err == nil && got.Status < http.StatusBadRequest:
			answered++
		case err == nil && got.Status != http.StatusServiceUnavailable, sent > 10*n:
			t.Errorf("answered %d %s, %v: %d of %d were answered", got.Status, got.Body, err, answered, n)
			return
		}
		// A connection that was idle may be closed under a request, and a busy api refuses one.
	}
}

// repeats puts messages that are known into the outbox, waits until they were received and takes
// them out again.
func (d *deployment) repeats(t *testing.T, n int) {
	t.Helper()
	const plant = `
insert into outbox
       (topic, message_id, payload, metadata)
select 'charges', message_id, payload, metadata || '{"repeated": "yes"}'
  from inbox,
       generate_series(1, $1::int)
 where receiver = 'fulfillment'`
	_, err := d.tables.Exec(t.Context(), plant, n/known)
	must(t, err)
	testrun.Row(t, d.tables, `select not exists (select from outbox)`)
}
