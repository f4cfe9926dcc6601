package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres/local"
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

// node is an address at which the programs reach a server over TCP.
type node struct {
	listener net.Listener
	socket   atomic.Pointer[string] // path, of the server
	server   *local.Server
	admin    *pgx.Conn // its statements wait for no standby
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{}
	var err error
	n.listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = n.listener.Close() })
	go func() {
		for client, err := n.listener.Accept(); err == nil; client, err = n.listener.Accept() {
			go n.pass(client)
		}
	}()
	return n
}

// pass moves the bytes of a connection, until an end is closed.
func (n *node) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := (&net.Dialer{}).Dial("unix", *n.socket.Load())
	if err != nil {
		return
	}
	go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
	_, _ = io.Copy(client, server)
}

// cluster is a primary and its standby.
type cluster struct {
	synchronous      bool
	primary, standby *node
	stopped          int             // first process of a primary that stands still
	servers          []*local.Server // all that there were
}

func newCluster(t *testing.T, synchronous bool) *cluster {
	t.Helper()
	c := &cluster{synchronous: synchronous, primary: newNode(t), standby: newNode(t)}
	t.Cleanup(func() { // after the end of the deployment on the cluster
		c.kill() // what stands still does not end
		for _, s := range c.servers {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	var err error
	c.primary.server, err = local.Start(t.Context(), local.Options{Fsync: true, InMemory: true})
	must(t, err)
	c.servers = append(c.servers, c.primary.server)
	c.follow(t)
	return c
}

// url is the connection string of the programs, which stays.
func (c *cluster) url() string {
	hosts := c.primary.listener.Addr().String() + "," + c.standby.listener.Addr().String()
	return "postgres://postgres@" + hosts + "/postgres?sslmode=disable&target_session_attrs=read-write"
}

// follow gives the primary a standby, which has everything when follow returns.
func (c *cluster) follow(t *testing.T) {
	t.Helper()
	var err error
	c.standby.server, err = c.primary.server.Standby(t.Context())
	must(t, err)
	c.servers = append(c.servers, c.standby.server)
	for _, n := range []*node{c.primary, c.standby} {
		n.connect(t, n.server.URL("postgres"))
		_, socket := pgconn.NetworkAddress(n.admin.Config().Host, n.admin.Config().Port)
		n.socket.Store(&socket)
	}
	state := "async"
	if c.synchronous {
		c.primary.set(t, "synchronous_standby_names", "standby")
		state = "sync"
	}
	testrun.Row(t, c.primary.admin, `select exists (select from pg_stat_replication where sync_state = $1 and replay_lsn >= pg_current_wal_lsn())`, state)
}

// stopReplication ends it: the standby lacks what is committed from now on.
func (c *cluster) stopReplication(t *testing.T) {
	t.Helper()
	c.standby.set(t, "primary_conninfo", "")
	testrun.Row(t, c.primary.admin, `select not exists (select from pg_stat_replication)`)
}

func (n *node) connect(t *testing.T, url string) {
	t.Helper()
	var err error
	n.admin, err = pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = n.admin.Close(context.WithoutCancel(t.Context())) })
	execute(t, n.admin, `set synchronous_commit = local`)
}

func (n *node) set(t *testing.T, setting, value string) {
	t.Helper()
	execute(t, n.admin, fmt.Sprintf(`alter system set %s = '%s'`, setting, value))
	execute(t, n.admin, `select pg_reload_conf()`)
}

// signal signals every process of the primary at once, as the loss of its machine does: the first
// one is stopped before, so that it starts no other. pg_stat_activity lacks a session that has just
// begun; if it outlived the others it could wait for their locks forever.
func (c *cluster) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	c.stopped = firstProcess(t, c.primary.admin)
	must(t, syscall.Kill(c.stopped, syscall.SIGSTOP))
	must(t, exec.CommandContext(t.Context(), "pkill", "-"+strconv.Itoa(int(s)), "-P", strconv.Itoa(c.stopped)).Run())
	if s == syscall.SIGKILL {
		c.kill()
	}
}

// firstProcess is that of a server.
func firstProcess(t *testing.T, q querier) int {
	t.Helper()
	return row[int](t, q, `select split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int`)
}

// faults are the ways in which the primary is lost to the programs.
var faults = map[string]func(*testing.T, *cluster){
	"kill": func(t *testing.T, c *cluster) { t.Helper(); c.signal(t, syscall.SIGKILL) },
	"hang": func(t *testing.T, c *cluster) { t.Helper(); c.signal(t, syscall.SIGSTOP) },
	"none": func(t *testing.T, _ *cluster) { t.Helper() }, // the old primary goes on beside the new one
}

// promote makes the standby the primary. The old one is where the standby was.
func (c *cluster) promote(t *testing.T) {
	t.Helper()
	execute(t, c.standby.admin, `select pg_promote()`)
	c.primary, c.standby = c.standby, c.primary
}

// fence ends the old primary for good.
func (c *cluster) fence(t *testing.T) {
	t.Helper()
	c.kill()
	must(t, c.standby.server.Close())
}

// kill ends a primary that stands still.
func (c *cluster) kill() {
	if c.stopped != 0 {
		_ = exec.Command("pkill", "-KILL", "-P", strconv.Itoa(c.stopped)).Run() //nolint:noctx // it fails where none is left
		_ = syscall.Kill(c.stopped, syscall.SIGKILL)
	}
	c.stopped = 0
}
