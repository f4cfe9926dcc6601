package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testrun"
)

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
