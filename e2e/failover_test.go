package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

var failovers = flag.Int("failovers", 0, "how many failovers each scenario has; without it some scenarios have one")

// short are the scenarios that are run without -failovers: those of -every, and the first one without it.
var short = []string{"synchronous kill", "asynchronous kill", "synchronous hang", "synchronous none"}

// TestFailover_losesNoChargeThatASynchronousStandbyHas loses the primary under load, in each
// mode of replication and in each way: real servers with streaming replication, charges that are
// sent twice, and a worker that is killed again and again. The programs know both servers by one URL
// and are never restarted for a failover. What an asynchronous standby lacks is lost: its keys, which
// are sent again, get other charges with the first payments, and no stream is damaged.
//
// To keep the old primary from coming back is the work of what promotes, such as Patroni.
// The tests do it: a killed primary stays down; one that stands still does so until it is killed.
func TestFailover_losesNoChargeThatASynchronousStandbyHas(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	some := short
	if !*every {
		some = short[:1]
	}
	for _, mode := range []string{"synchronous", "asynchronous"} {
		for _, fault := range []string{"kill", "hang", "none"} {
			if *failovers == 0 && !slices.Contains(some, mode+" "+fault) {
				continue
			}
			t.Run(mode+" "+fault, func(t *testing.T) {
				c := newCluster(t, mode == "synchronous")
				w := newUnderLoad(t, c.url(), nil)
				t.Cleanup(c.kill) // a test that fails early leaves a server that stands still
				w.client.forgets = !c.synchronous
				w.lose(t, max(1, *failovers), func(i int) {
					if i > 0 {
						c.fence(t)
						c.follow(t)
					}
					if !c.synchronous {
						c.stopReplication(t)
						w.acceptsMore(t, 10)
					}
				}, func() { faults[fault](t, c); c.promote(t) })
				c.fence(t) // the audit may use any server that takes writes
				w.settle(t)
			})
		}
	}
}

// underLoad is a payonce that loses its database: two apis, and two workers of which one is killed again and again.
type underLoad struct {
	*deployment

	flows []*flow
	lost  int           // how often it has lost the database
	gap   time.Duration // the longest from a loss until a charge was sent and accepted
}

func newUnderLoad(t *testing.T, database string, env map[string]string) *underLoad {
	t.Helper()
	on, err := newServer(database)
	must(t, err)
	return &underLoad{deployment: deploy(t, setup{apis: 2, workers: 2, twice: true, on: on, apiEnv: env, workerEnv: env})}
}

// lose loses the database n times under load, and prepares each loss. After it each api accepts charges again.
func (w *underLoad) lose(t *testing.T, n int, prepare func(i int), loss func()) {
	t.Helper()
	stop := make(chan struct{})
	var all sync.WaitGroup
	until := func(do func()) {
		all.Go(func() {
			for harness.Wait(t.Context(), 100*time.Millisecond) == nil {
				select {
				case <-stop:
					return
				default:
					do()
				}
			}
		})
	}
	const charges = 16 // in flight
	until(func() {
		f := w.flowing(t, charges, charges, visa, cardDeclined, visa)
		f.all.Wait()
		w.flows = append(w.flows, f)
	})
	until(func() {
		must(t, w.Workers[0].Kill())
		for w.Workers[0].Restart(bounded(t)) != nil && t.Context().Err() == nil {
			t.Log("a worker that starts while there is no primary gives up, and is started again")
		}
		pause(t.Context(), 400*time.Millisecond)
	})
	var after flow // requests of which each api had one after each loss
	for i := range n {
		prepare(i)
		w.acceptsMore(t, 40)
		lost := time.Now()
		loss()
		w.acceptsMore(t, charges+1)
		w.gap = max(w.gap, time.Since(lost))
		w.lost++
		for _, api := range w.APIs {
			here := func(context.Context) (string, error) { return api.URL(), nil }
			r := request{Key: "key-" + unique(), Body: newOrder(visa).body(t), To: here}
			acceptedCharge(t, w.insist(t, r))
			after.requests = append(after.requests, r)
		}
		w.acceptsMore(t, 40)
	}
	close(stop)
	all.Wait()
	w.flows = append(w.flows, &after)
}

// acceptsMore waits until so many more charges are accepted.
func (w *underLoad) acceptsMore(t *testing.T, n int) { t.Helper(); w.accepts(t, w.client.count()+n) }

// settle sends every key once more, and leaves a deployment of which every invariant holds. It prints what was
// lost: accepted charges, whose keys have other charges now; what was doubled: payments of one request; and what was
// damaged: violations that the audit finds.
func (w *underLoad) settle(t *testing.T) {
	t.Helper()
	for _, loss := range w.Losses() {
		t.Error(loss)
	}
	var err error
	w.tables.Close()
	w.tables, err = pgxpool.New(t.Context(), w.Service) // a session of the old primary may hang
	must(t, err)
	for _, f := range w.flows {
		f.finish(t, w.deployment)
	}
	if w.client.forgets {
		w.forget(t)
	} else {
		w.drain(t)
	}
	w.checkAcceptedKeys(t)
	books, err := w.sandbox().Books(bounded(t))
	must(t, err)
	audit, err := w.Audit(bounded(t))
	must(t, err)
	doubled, damaged := 0, 0
	for _, n := range captures(books) {
		doubled += min(1, n-1)
	}
	for _, c := range audit.Checks {
		damaged += c.Violated
	}
	t.Logf("%s: failovers=%d lost=%d doubled=%d damaged=%d accepted=%d gap=%s",
		t.Name(), w.lost, w.client.lost, doubled, damaged, w.client.count(), w.gap.Round(time.Millisecond))
	if doubled+damaged > 0 {
		t.Errorf("violated: %q", audit.Violated())
	}
	if w.client.forgets {
		if w.client.lost == 0 {
			t.Error("nothing was lost: the standby lacked nothing")
		}
		w.client = nil // the shop was notified of lost charges
	}
}

// forget removes messages of lost events, which have no effect: a worker had read them from the old primary.
func (w *underLoad) forget(t *testing.T) {
	t.Helper()
	const unheard = `
delete from inbox i
 where type ~ '\.v[0-9]+$'
   and not exists (select from ledger_events e where e.event_id::text = i.message_id)`
	testrun.Changing(testrun.Stall, func() (string, bool) {
		execute(t, w.tables, unheard)
		err := w.quiet(t.Context(), 5*time.Second)
		return fmt.Sprint(err), err == nil
	})
}
