package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

const (
	// heapSlack is how much the least heap of the second half may exceed that of the first, in
	// KiB. In the short form a leak of 1 KiB a message comes to about as much.
	heapSlack = 1024
	// known is how many messages are repeated.
	known = 40
	// collectAt is by how many percent the heap of a program grows until it is collected.
	collectAt = 10
)

// soakMemory has a worker receive a few messages many times, and an api answer as many requests as
// it can meanwhile. What they hold must not grow with that.
func soakMemory(t *testing.T) {
	t.Helper()
	n := soaked(t, "messages", 1_000_000, 4_000)
	often := map[string]string{"GOGC": strconv.Itoa(collectAt)}
	d := deploy(t, setup{apis: 1, workers: 1, apiEnv: often, workerEnv: often})
	f := d.flowing(t, known, 8, visa, cardDeclined)
	f.finish(t, d)
	d.drain(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var answered atomic.Int64
	var clients sync.WaitGroup
	for i := range 2 {
		clients.Go(func() { d.replays(ctx, t, f.requests[i:], &answered) })
	}
	heaps := map[*harness.Process]*[2][]int64{d.Workers[0]: {}, d.APIs[0]: {}} // after collections, in each half
	// A program that was just started is not yet as large as its work makes it.
	chunk := max(n/100, 400)
	for sent := 0; sent < n+n/10; sent += chunk {
		d.repeats(t, chunk)
		for p, halves := range heaps {
			if sent >= n/10 {
				half := min(1, 2*(sent-n/10)/n)
				halves[half] = append(halves[half], liveHeap(t, p))
			}
		}
	}
	cancel()
	clients.Wait()
	if answered.Load() == 0 {
		t.Error("the api answered nothing: this showed nothing about it")
	}
	for p, halves := range heaps {
		first, second := slices.Min(halves[0]), slices.Min(halves[1])
		if second > first+heapSlack {
			t.Errorf("the heap of %s grew from %d KiB to %d, with a slack of %d", p.Name(), first, second, heapSlack)
		}
		t.Logf("the heap of %s held %d KiB at least in the first half and %d in the second", p.Name(), first, second)
	}
	t.Logf("%d messages after %d that were not measured, %d of them received again; %d requests answered",
		n, n/10, row[int64](t, d, `select coalesce(sum(duplicates), 0)::bigint from inbox`), answered.Load())
}

// liveHeap is how much a program's heap held after its last collection, in KiB. The size at
// which the next collection begins says so.
func liveHeap(t *testing.T, p *harness.Process) (kib int64) {
	t.Helper()
	_, value, _ := strings.Cut(string(fetch(t, p, "/metrics").Body), "\ngo_memstats_next_gc_bytes ")
	var size float64
	if _, err := fmt.Sscan(value, &size); err != nil || size == 0 {
		t.Fatalf("%s does not say how large its heap is: %v", p.Name(), err)
	}
	return int64(size*100/(100+collectAt)) >> 10
}

// replays sends charges again that were accepted, and reads them.
func (d *deployment) replays(ctx context.Context, t *testing.T, charges []request, answered *atomic.Int64) {
	t.Helper()
	for ctx.Err() == nil {
		r := charges[int(answered.Load())%len(charges)]
		header := http.Header{"Idempotency-Key": {r.key}} // past the client's notes, which would grow
		got, err := d.client.do(ctx, request{body: r.body, header: header})
		if err == nil && got.Status == http.StatusAccepted {
			got, err = d.client.do(ctx, request{method: http.MethodGet, path: got.Header.Get("Location")})
		}
		switch {
		case err != nil: // a connection that was idle may be closed under a request
		case got.Status >= http.StatusBadRequest:
			t.Errorf("answered %d %s", got.Status, got.Body)
			return
		default:
			answered.Add(2)
		}
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
	d.exec(t, plant, n/known)
	testrun.Row(t, d.tables, `select not exists (select from outbox)`)
}
