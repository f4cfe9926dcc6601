package e2e_test

import (
	"cmp"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

var failovers = flag.Int("failovers", 0, "how many failovers each scenario has; without it some scenarios have one")

// short are the scenarios that are run without -failovers: those of -every, and the first one without it.
var short = []string{"synchronous kill", "asynchronous kill", "synchronous hang", "synchronous none"}

// TestFailover_losesNoChargeThatASynchronousStandbyHas loses the primary under load, in each
// mode of replication and in each way: real servers with streaming replication, charges that are
// sent twice, and a worker that is killed again and again. The programs know both servers by one URL
// and are never restarted for a failover. What an asynchronous standby lacks is lost, and no stream is
// damaged by that. Each scenario prints a line:
//
//   - failovers: how many there were.
//   - lost: accepted charges that are missing or whose key is answered differently, where
//     replication is synchronous.
//   - doubled: charges that were captured twice, and orders with two charges.
//   - damaged: violations that the audit finds, but for captures whose charge was lost.
//   - gone: captures without a charge, which only asynchronous replication leaves. The audit
//     must name each of them.
//   - gap: the longest time from the loss until a new charge was accepted.
//
// To keep the old primary from coming back is the work of what promotes, such as Patroni.
// The tests do it: a killed primary stays down; one that stands still or is cut off stays so
// until it is killed.
func TestFailover_losesNoChargeThatASynchronousStandbyHas(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	some := short
	if !*every {
		some = short[:1]
	}
	for _, mode := range []string{"synchronous", "asynchronous"} {
		for _, fault := range []string{"kill", "hang", "cut", "none"} {
			if *failovers == 0 && !slices.Contains(some, mode+" "+fault) {
				continue
			}
			t.Run(mode+" "+fault, func(t *testing.T) {
				c := newCluster(t, mode == "synchronous")
				w := newUnderLoad(t, c)
				w.lose(t, max(1, *failovers), func() { faults[fault](t, c); c.promote(t) }, func() { c.fence(t); c.follow(t) })
				c.fence(t) // the audit may use any server that takes writes
				t.Log(w.judge(t) + fmt.Sprintf(" mode=%s fault=%s", mode, fault))
			})
		}
	}
}

// underLoad is a payonce on a cluster: two apis, two workers of which one is killed again and
// again, and a provider whose records survive.
type underLoad struct {
	harness.World

	cluster *cluster
	load    *load
	stop    chan struct{}
	flowing sync.WaitGroup
	gaps    []time.Duration
}

func newUnderLoad(t *testing.T, c *cluster) *underLoad {
	t.Helper()
	w := &underLoad{cluster: c, stop: make(chan struct{})}
	w.World = harness.World{Binaries: binaries(t), Log: t.TempDir(), Service: c.url("postgres"), Secrets: newSecrets()}
	t.Cleanup(func() { must(t, w.Stop(bounded(t))) })
	w.Env = func(_ string, env map[string]string) { env["EXPECT_REPLICATION"] = strconv.FormatBool(c.strict) }
	must(t, w.Up(bounded(t), harness.Setup{APIs: 2, Workers: 2, Merchant: "acme", Stock: []string{"tshirt=1000000"}}))
	w.load = &load{merchant: w.Client()}
	return w
}

// lose loses the primary n times under load. Between two of them mend gives the new one a
// standby.
func (w *underLoad) lose(t *testing.T, n int, failOver, mend func()) {
	t.Helper()
	w.flowing.Go(func() { w.load.run(t, w.stop) })
	w.flowing.Go(func() { w.killWorkers(t) })
	for i := range n {
		if i > 0 {
			mend()
		}
		w.load.flow(t, 40)
		if !w.cluster.synchronous {
			w.cluster.replication.Lose()
			w.load.flow(t, 10)
		}
		lost := time.Now()
		failOver()
		w.load.flow(t, 1)
		w.gaps = append(w.gaps, time.Since(lost).Round(time.Millisecond))
		w.load.flow(t, 40)
	}
	close(w.stop)
	w.flowing.Wait()
	w.load.sending.Wait()
}

// killWorkers kills the first worker again and again.
func (w *underLoad) killWorkers(t *testing.T) {
	t.Helper()
	for harness.Wait(t.Context(), 500*time.Millisecond) == nil {
		select {
		case <-w.stop:
			return
		default:
		}
		must(t, w.Workers[0].Kill())
		for w.Workers[0].Restart(bounded(t)) != nil && t.Context().Err() == nil {
			t.Log("a worker that starts while there is no primary gives up, and is started again")
		}
	}
}

// judge waits until all work is done, and counts.
func (w *underLoad) judge(t *testing.T) string {
	t.Helper()
	w.load.mu.Lock()
	for _, refused := range w.load.refused {
		t.Errorf("answered %d %s", refused.Status, refused.Body)
	}
	w.load.mu.Unlock()
	for _, loss := range w.Losses() {
		t.Error(loss)
	}
	w.settle(t)
	gone, doubled := w.captured(t)
	doubled += len(rows[string](t, w.cluster.primary.admin, `select data ->> 'order_id' from ledger_events where type = 'charge.requested.v1' group by 1 having count(*) > 1`))
	damaged := w.damage(t, gone)
	lost := w.missing(t)
	w.settle(t)
	found, again := w.captured(t) // what the keys that were sent again have not found
	if lost+doubled+damaged+again > 0 || w.cluster.synchronous && gone > 0 {
		t.Errorf("lost %d, doubled %d, damaged %d, captures without a charge %d; doubled by keys that were sent again %d", lost, doubled, damaged, gone, again)
	}
	return fmt.Sprintf("failovers=%d lost=%d doubled=%d damaged=%d accepted=%d gone=%d of which the clients did not find %d gap=%s",
		len(w.gaps), lost, doubled+again, damaged, len(w.load.all()), gone, found, slices.Max(w.gaps))
}

// settle waits until every charge has been notified of.
func (w *underLoad) settle(t *testing.T) {
	t.Helper()
	const left = `
select concat_ws(' ', (select count(*) from inbox i -- but for messages of a charge that was lost
                        where status in ('pending', 'running')
                          and exists (select from ledger_events e where e.stream_id = i.ordering_key)),
                      (select count(*) from ledger_events r
                        where type = 'charge.requested.v1'
                          and not exists (select from ledger_events n where n.stream_id = r.stream_id and n.type = 'merchant.notified.v1')))`
	testrun.Progress(t, "every charge has been notified of", func() (string, bool) {
		open := row[string](t, w.cluster.primary.admin, left)
		return open, open == "0 0"
	})
}

// captured counts captures without a charge, and charges that were captured twice.
func (w *underLoad) captured(t *testing.T) (gone, doubled int) {
	t.Helper()
	books, err := harness.Sandbox(w.Sandbox.URL()).Books(bounded(t))
	must(t, err)
	captures := map[string]int{}
	for _, c := range books.Captures {
		captures[cmp.Or(c.ChargeReference, c.Reference)]++
	}
	ledger := rows[string](t, w.cluster.primary.admin, `select coalesce(data ->> 'reference', stream_id) from ledger_events where type = 'charge.requested.v1'`)
	for id, n := range captures {
		if n > 1 {
			doubled++
		}
		if !slices.Contains(ledger, id) {
			gone++
		}
	}
	return gone, doubled
}

// unheard are messages of lost events, which have no effect.
const unheard = `
select message_id
  from inbox i
 where type ~ '\.v[0-9]+$'
   and status <> 'done'
   and not exists (select from ledger_events e where e.event_id::text = i.message_id)`

// damage counts what the audit finds, but for captures without a charge, each of which it must
// name, and for messages of lost events: a worker had read them from the old primary.
func (w *underLoad) damage(t *testing.T, gone int) (damaged int) {
	t.Helper()
	audit, err := w.Audit(bounded(t))
	must(t, err)
	named := 0
	for _, c := range audit.Checks {
		switch {
		case c.Name == "provider: every capture is a charge's in the ledger":
			named = c.Violated
		case strings.HasPrefix(c.Name, "provider: captured sums") && gone > 0:
		case c.Name == "every message is an event of the ledger" && !w.cluster.synchronous && c.Violated == len(rows[string](t, w.cluster.primary.admin, unheard)):
		case c.Violated > 0:
			damaged += c.Violated
			t.Errorf("%s: %d of %d, %q", c.Name, c.Violated, c.Checked, c.Examples)
		}
	}
	if named != gone {
		t.Errorf("the audit names %d captures without a charge, the provider has %d", named, gone)
	}
	return damaged
}

// missing sends every accepted key once more, and counts those that are answered with another
// charge although a synchronous standby had it.
func (w *underLoad) missing(t *testing.T) (n int) {
	t.Helper()
	ctx := bounded(t)
	for _, a := range w.load.all() {
		answers := w.load.merchant.PostAll(ctx, 1, "/v1/charges", a.key, a.body) // none where no api answers any more
		again := len(answers) == 1 && answers[0].Member("id") != ""
		if !again || w.cluster.synchronous && slices.ContainsFunc(a.ids, func(first string) bool { return first != answers[0].Member("id") }) {
			n++
			t.Errorf("%s was answered %v, now %+v", a.key, a.ids, answers)
		}
	}
	return n
}

// acceptance is a charge whose requests were answered 202.
type acceptance struct {
	key  string
	body []byte
	ids  []string // of each answer
	sent time.Time
}

// load sends charges, each twice at once, until it is stopped.
type load struct {
	merchant *harness.Client
	sending  sync.WaitGroup

	mu       sync.Mutex
	accepted []acceptance
	refused  []harness.Answer
}

const (
	interval    = 25 * time.Millisecond // between two charges
	duplicates  = 2
	maxInFlight = 64 // charges that are sent and not answered
)

// run sends until stop is closed. What was sent is retried until it is answered, or the test
// ends.
func (l *load) run(t *testing.T, stop <-chan struct{}) {
	t.Helper()
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	slots := make(chan struct{}, maxInFlight)
	for {
		select {
		case <-stop:
			return
		case slots <- struct{}{}:
		}
		l.sending.Go(func() {
			l.send(t)
			<-slots
		})
		<-ticks.C
	}
}

func (l *load) send(t *testing.T) {
	t.Helper()
	a := acceptance{key: "key-" + unique(), body: newOrder(visa).body(t), sent: time.Now()}
	answers := l.merchant.PostAll(t.Context(), duplicates, "/v1/charges", a.key, a.body)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, got := range answers {
		if got.Status != http.StatusAccepted {
			l.refused = append(l.refused, got)
			continue
		}
		a.ids = append(a.ids, got.Member("id"))
	}
	if len(a.ids) > 0 {
		l.accepted = append(l.accepted, a)
	}
}

func (l *load) all() []acceptance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.accepted)
}

// flow waits until so many more charges were accepted that were sent since.
func (l *load) flow(t *testing.T, n int) {
	t.Helper()
	since := time.Now()
	testrun.Progress(t, fmt.Sprintf("%d charges are accepted", n), func() (string, bool) {
		done := 0
		for _, a := range l.all() {
			if a.sent.After(since) {
				done++
			}
		}
		return strconv.Itoa(done), done >= n
	})
}
