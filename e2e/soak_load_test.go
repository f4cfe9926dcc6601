package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// memorySlack is how much more a program may hold in the second half than in the
// first, in KiB: what the garbage collector leaves to chance.
const memorySlack = 12 << 10

const (
	// heapSlack is how much the least heap of the second half may exceed that of the first, in
	// KiB. In the short form a leak of 1 KiB a message comes to about as much.
	heapSlack = 1024
	// collectAt is by how many percent the heap of a program grows until it is collected.
	collectAt = 10
)

// soakMemory has a worker receive a few messages many times, and an api answer as many requests as
// it can meanwhile. What they hold must not grow with that.
func soakMemory(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("not run: how much memory a program holds is read from /proc")
	}
	n := soaked(t, "messages", 1_000_000, 4_000)
	often := map[string]string{"GOGC": strconv.Itoa(collectAt)}
	d := deploy(t, setup{apis: 1, workers: 1, apiEnv: often, workerEnv: often})
	f := d.flowing(t, 40, 8, visa, cardDeclined)
	f.finish(t, d)
	d.drain(t)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var answered atomic.Int64
	var clients sync.WaitGroup
	for i := range 2 {
		clients.Go(func() { d.replays(ctx, t, f.requests[i:], &answered) })
	}
	peaks := map[*harness.Process]*[2]int64{d.Workers[0]: {}, d.APIs[0]: {}}   // of the resident memory, in each half
	heaps := map[*harness.Process]*[2][]int64{d.Workers[0]: {}, d.APIs[0]: {}} // after collections, in each half
	// A program that was just started is not yet as large as its work makes it.
	chunk := max(n/100, 400)
	for sent := 0; sent < n+n/10; sent += chunk {
		d.repeats(t, chunk)
		if sent >= n/10 {
			half := min(1, 2*(sent-n/10)/n)
			for p, most := range peaks {
				most[half] = max(most[half], memoryOf(t, p.PID(), "VmRSS"))
				heaps[p][half] = append(heaps[p][half], liveHeap(t, p))
			}
		}
	}
	cancel()
	clients.Wait()
	if answered.Load() == 0 {
		t.Error("the api answered nothing: this showed nothing about it")
	}
	for p, most := range peaks {
		if most[0] == 0 || most[1] == 0 || most[1] > most[0]+memorySlack {
			t.Errorf("%s held %d KiB in the first half and %d in the second, with a slack of %d", p.Name(), most[0], most[1], memorySlack)
		}
		t.Logf("%s held %d KiB at most in the first half and %d in the second", p.Name(), most[0], most[1])
		first, second := slices.Min(heaps[p][0]), slices.Min(heaps[p][1])
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
with known as (
  select 'charges' as topic,
         message_id,
         payload,
         metadata,
         row_number() over () - 1 as number,
         count(*) over ()         as together
    from inbox
   where receiver = 'fulfillment'
)
insert into outbox
       (topic, message_id, payload, metadata)
select k.topic,
       k.message_id,
       k.payload,
       k.metadata || '{"repeated": "yes"}'
  from generate_series(1, $1::int) i
  join known k
    on k.number = i % k.together`
	d.exec(t, plant, n)
	testrun.Row(t, d.tables, `select not exists (select from outbox)`)
}

// memoryOf is how much memory a process has by a line of its status, in KiB.
func memoryOf(t *testing.T, pid int, line string) (kib int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("not run: how much memory a program holds is read from /proc: %v", err)
	}
	_, value, _ := strings.Cut(string(status), "\n"+line+":")
	if _, err := fmt.Sscan(value, &kib); err != nil || kib == 0 {
		t.Fatalf("process %d does not say what it holds: %v\n%s", pid, err, status)
	}
	return kib
}
