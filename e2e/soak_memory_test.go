package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/fleet"
)

// memorySlack is how much more a program may hold in the second half than in the
// first, in KiB: what the garbage collector leaves to chance.
const memorySlack = 12 << 10

// soakMemory has a worker receive many messages, most of them for the second time
// or of no known type, and an api answer as many requests as it can meanwhile. What
// they hold must not grow with that.
func soakMemory(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("not run: how much memory a program holds is read from /proc")
	}
	n := soaked(t, "messages", 1_000_000, 4_000)
	d := deploy(t, setup{apis: 1, workers: 1})
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
	held := map[*fleet.Process]*[2]int64{d.Workers[0]: {}, d.APIs[0]: {}} // at most, in each half
	// A program that was just started is not yet as large as its work makes it.
	chunk := max(n/100, 400)
	for sent := 0; sent < n+n/10; sent += chunk {
		d.repeats(t, chunk)
		if sent >= n/10 {
			half := min(1, 2*(sent-n/10)/n)
			for p, most := range held {
				most[half] = max(most[half], resident(t, p.PID()))
			}
		}
	}
	cancel()
	clients.Wait()
	if answered.Load() == 0 {
		t.Error("the api answered nothing: this showed nothing about it")
	}
	for p, most := range held {
		if most[0] == 0 || most[1] == 0 || most[1] > most[0]+memorySlack {
			t.Errorf("%s held %d KiB in the first half and %d in the second, with a slack of %d", p.Name(), most[0], most[1], memorySlack)
		}
		t.Logf("%s held %d KiB at most in the first half and %d in the second", p.Name(), most[0], most[1])
	}
	t.Logf("%d messages after %d that were not measured, %d of them received again; %d requests answered",
		n, n/10, row[int64](t, d, `select coalesce(sum(duplicates), 0)::bigint from inbox`), answered.Load())
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

// repeats puts messages into the outbox, waits until they were received and takes
// them out again: every other one is known, the others are of a type without a
// receiver.
func (d *deployment) repeats(t *testing.T, n int) {
	t.Helper()
	const plant = `
with known as (
  select topic,
         message_id,
         payload,
         metadata,
         row_number() over () - 1 as number,
         count(*) over ()         as together
    from outbox
   where not metadata ? 'repeated'
)
insert into outbox
       (topic, message_id, payload, metadata)
select k.topic,
       case when i % 2 = 0 then k.message_id else 'soak-' || i end,
       k.payload,
       k.metadata || case when i % 2 = 0 then '{"repeated": "yes"}'::jsonb else '{"repeated": "yes", "type": "soak.unknown.v1"}' end
  from generate_series(1, $1::int) i
  join known k
    on k.number = i / 2 % k.together`
	d.exec(t, plant, n)
	await.Row(t, d.tables, `select not exists (`+behind+`)`)
	d.exec(t, `delete from outbox where metadata ? 'repeated'`)
}

// resident is how much memory a process holds, in KiB.
func resident(t *testing.T, pid int) (kib int64) {
	t.Helper()
	status := readFile(t, "/proc/"+strconv.Itoa(pid)+"/status")
	_, value, _ := strings.Cut(status, "\nVmRSS:")
	if _, err := fmt.Sscan(value, &kib); err != nil {
		t.Fatalf("process %d does not say what it holds: %v\n%s", pid, err, status)
	}
	return kib
}
