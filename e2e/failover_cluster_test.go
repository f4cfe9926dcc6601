package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testrun"
)

// node is a server, and the link by which the programs reach it.
type node struct {
	server *local.Server
	link   *failpoint.Proxy
	admin  *pgx.Conn // past the link; its statements wait for no standby
}

// cluster is a primary and its standby.
type cluster struct {
	synchronous      bool
	primary, standby *node
	strict           bool             // commits wait for a standby at any time
	user             string           // with a password, if it needs one
	hosts            string           // of both, in an order that stays
	replication      *failpoint.Proxy // by which the standby reaches the primary
	stopped          int              // first process of a primary that stands still
	servers          []*local.Server  // all that there were
}

func newCluster(t *testing.T, synchronous bool) *cluster {
	t.Helper()
	server, err := local.Start(t.Context(), local.Options{Fsync: true, InMemory: true})
	must(t, err)
	c := &cluster{synchronous: synchronous, user: "postgres", primary: &node{server: server}}
	c.closeAtEnd(t, server)
	c.primary.link, c.replication = newLink(t, server), newLink(t, server)
	c.standby = &node{link: newLink(t, server)}
	c.hosts = c.primary.link.Address() + "," + c.standby.link.Address()
	c.follow(t)
	return c
}

// newLink is an address by which a server is reached over TCP.
func newLink(t *testing.T, to *local.Server) *failpoint.Proxy {
	t.Helper()
	link, err := failpoint.NewProxy(t.Context(), to.URL("postgres"), nil)
	must(t, err)
	t.Cleanup(link.Close)
	return link
}

// closeAtEnd closes a server after the deployment on the cluster has ended, also one that came later.
func (c *cluster) closeAtEnd(t *testing.T, server *local.Server) {
	t.Helper()
	c.servers = append(c.servers, server)
	if len(c.servers) > 1 {
		return
	}
	t.Cleanup(func() {
		c.kill() // what stands still does not end
		for _, s := range c.servers {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// url is the connection string of the programs.
func (c *cluster) url(database string) string {
	return "postgres://" + c.user + "@" + c.hosts + "/" + database + "?sslmode=disable&target_session_attrs=read-write"
}

// follow gives the primary a standby, which has everything when follow returns.
func (c *cluster) follow(t *testing.T) {
	t.Helper()
	var err error
	c.standby.server, err = c.primary.server.Standby(t.Context())
	must(t, err)
	c.closeAtEnd(t, c.standby.server)
	c.primary.connect(t, c.primary.server.URL("postgres"))
	c.standby.connect(t, c.standby.server.URL("postgres"))
	must(t, errors.Join(c.replication.Lead(c.primary.server.URL("postgres")), c.standby.link.Lead(c.standby.server.URL("postgres"))))
	host, port, err := net.SplitHostPort(c.replication.Address())
	must(t, err)
	c.standby.set(t, "primary_conninfo", fmt.Sprintf("host=%s port=%s user=postgres sslmode=disable application_name=standby", host, port))
	state := "async"
	if c.synchronous {
		c.primary.set(t, "synchronous_standby_names", "standby")
		state = "sync"
	}
	testrun.Row(t, c.primary.admin, `
select exists (select from pg_stat_replication where client_addr is null and sync_state = $1 and replay_lsn >= pg_current_wal_lsn())`, state)
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
	name := row[string](t, c.primary.admin, `select split_part(pg_read_file('postmaster.pid'), E'\n', 1)`)
	first, err := strconv.Atoi(name)
	must(t, err)
	must(t, syscall.Kill(first, syscall.SIGSTOP))
	c.stopped = first
	must(t, exec.CommandContext(t.Context(), "pkill", "-"+strconv.Itoa(int(s)), "-P", name).Run())
	if s == syscall.SIGKILL {
		c.kill()
	}
}

// faults are the ways in which the primary is lost to the standby.
var faults = map[string]func(*testing.T, *cluster){
	"kill": func(t *testing.T, c *cluster) { t.Helper(); c.signal(t, syscall.SIGKILL) },
	"hang": func(t *testing.T, c *cluster) { t.Helper(); c.signal(t, syscall.SIGSTOP) },
	"cut": func(t *testing.T, c *cluster) {
		t.Helper()
		if c.synchronous { // else it was cut before
			c.replication.Lose()
		}
		c.primary.link.Lose()
	},
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
