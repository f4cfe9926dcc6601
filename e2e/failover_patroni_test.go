package e2e_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// TestPatroni_losesNoCharge kills Patroni and the primary that it runs, and starts them again.
func TestPatroni_losesNoCharge(t *testing.T) {
	if *failovers == 0 {
		t.Skip("not run without -failovers: a failover takes half a minute")
	}
	for _, program := range []string{"patroni", "etcd", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: apt-get install patroni etcd-server", err)
		}
	}
	t.Parallel()
	p := newPatroni(t)
	w := newUnderLoad(t, p.address, map[string]string{"EXPECT_REPLICATION": "1"})
	w.lose(t, *failovers, func(i int) {
		if i > 0 {
			p.follow(t)
		}
	}, func() { p.failOver(t) })
	w.settle(t)
}

// patroni is a cluster of two servers that Patroni runs with the configuration in
// deploy/patroni, on one etcd.
type patroni struct {
	cluster

	address string // of both servers, for the programs
	dir     string
	account []string // what runs a command as the user of the servers
	bin     string   // folder of PostgreSQL's programs
	members map[*node]*member
}

// member is a server, and the Patroni that runs it.
type member struct {
	*harness.Process

	address, api string
}

func newPatroni(t *testing.T) *patroni {
	t.Helper()
	dir, err := os.MkdirTemp("", "patroni-") //nolint:usetesting // other accounts do not enter t.TempDir
	must(t, err)
	p := &patroni{dir: dir, members: map[*node]*member{}}
	t.Cleanup(func() {
		testrun.True(t, "the folder of the servers is removed", func() bool { return os.RemoveAll(dir) == nil })
	})
	p.findPostgreSQL(t)
	at := addresses(t, 6)
	p.startEtcd(t, at[0], "http://"+at[1])
	p.address = superuser + at[2] + "," + at[3] + "/postgres?sslmode=disable&target_session_attrs=read-write"
	p.primary, p.standby = &node{}, &node{}
	for i, n := range []*node{p.primary, p.standby} {
		p.start(t, n, fmt.Sprintf("db%d", i+1), at[2+i], at[4+i], at[0])
		testrun.True(t, "there is a primary", func() bool { return fetch(t, "http://"+at[4]+"/primary") != "" })
	}
	p.primary.connect(t, p.admin(p.primary))
	p.follow(t)
	return p
}

// findPostgreSQL asks a server for its programs and its user, and owns the folder by the user.
func (p *patroni) findPostgreSQL(t *testing.T) {
	t.Helper()
	server, err := local.Start(t.Context(), local.Options{InMemory: true})
	must(t, err)
	defer func() { must(t, server.Close()) }()
	n := &node{server: server}
	n.connect(t, server.URL("postgres"))
	var folder string
	must(t, n.admin.QueryRow(t.Context(), `select setting, current_setting('data_directory') from pg_config() where name = 'BINDIR'`).Scan(&p.bin, &folder))
	if _, err := os.Stat(p.bin + "/pg_rewind"); err != nil {
		t.Skipf("Patroni needs all programs of PostgreSQL: %v", err)
	}
	info, err := os.Stat(folder)
	must(t, err)
	owner := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // of every Unix
	must(t, os.Chown(p.dir, int(owner.Uid), int(owner.Gid)))
	if os.Getuid() == 0 {
		p.account = []string{"setpriv", "--clear-groups", fmt.Sprintf("--reuid=%d", owner.Uid), fmt.Sprintf("--regid=%d", owner.Gid)}
	}
}

// addresses are free at this moment.
func addresses(t *testing.T, n int) (all []string) {
	t.Helper()
	for range n {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		must(t, err)
		defer func() { _ = listener.Close() }()
		all = append(all, listener.Addr().String())
	}
	return all
}

// run starts a command that serves at an address, as the harness wants a program.
func (p *patroni) run(t *testing.T, name, address string, command ...string) *harness.Process {
	t.Helper()
	const script = `printf '{"msg":"listening","addr":"%s"}\n' "$HTTP_ADDR" >&2; exec "$@"`
	process, err := harness.Start(bounded(t), harness.Program{
		Name: name, Path: "/bin/sh", Args: append([]string{"-c", script, "sh"}, command...),
		Env: map[string]string{"HTTP_ADDR": address}, Log: p.dir,
	})
	must(t, err)
	t.Cleanup(func() {
		_ = process.Stop(bounded(t)) // Patroni stops its server
		if t.Failed() {
			t.Logf("%s:\n%s", name, process.Tail())
		}
	})
	return process
}

func (p *patroni) startEtcd(t *testing.T, address, peer string) {
	t.Helper()
	client := "http://" + address
	p.run(t, "etcd", address, "etcd", "--data-dir", filepath.Join(p.dir, "etcd"), "--initial-cluster", "default="+peer,
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer)
}

// start starts a Patroni. Its configuration is the documented one but for what belongs to a
// machine.
func (p *patroni) start(t *testing.T, n *node, name, address, api, etcd string) {
	t.Helper()
	folder := filepath.Join(p.dir, name)
	config := readFile(t, "../deploy/patroni/patroni.yml")
	for _, change := range [][2]string{
		{"name: db1", "name: " + name},
		{"10.0.0.1:8008", api},
		{"10.0.0.1:5432", address},
		{"10.0.0.11:2379, 10.0.0.12:2379, 10.0.0.13:2379", etcd},
		{"10.0.0.0/24", "127.0.0.1/32"},
		{"/usr/lib/postgresql/17/bin", p.bin},
		{"/var/lib/postgresql/payonce", folder},
		{"ssl: 'on'", "ssl: 'off'"},
		{"hostssl", "host"},
		{"mode: required", "mode: 'off'"},
	} {
		if !strings.Contains(config, change[0]) {
			t.Fatalf("patroni.yml does not have %q", change[0])
		}
		config = strings.ReplaceAll(config, change[0], change[1])
	}
	path := folder + ".yml"
	must(t, os.WriteFile(path, []byte(config), 0o644)) //nolint:gosec // another user reads it
	m := &member{address: address, api: api}
	p.members[n] = m
	m.Process = p.run(t, name, api, append(p.account, "/bin/sh", "-c", `mkdir -p "$1" && exec patroni "$2"`, "sh", folder, path)...)
}

// superuser begins the URLs of the servers.
const superuser = "postgres://postgres:change-me-superuser@"

func (p *patroni) admin(n *node) string {
	return superuser + p.members[n].address + "/postgres?sslmode=disable"
}

// failOver kills the primary and its Patroni, waits for the promotion of the standby, and
// starts what was killed.
func (p *patroni) failOver(t *testing.T) {
	t.Helper()
	killed := p.primary
	must(t, p.members[killed].Kill())
	p.signal(t, syscall.SIGKILL)
	testrun.Row(t, p.standby.admin, `select not pg_is_in_recovery()`)
	p.primary, p.standby = p.standby, killed
	must(t, p.members[killed].Restart(bounded(t)))
}

// follow waits until Patroni may promote the standby.
func (p *patroni) follow(t *testing.T) {
	t.Helper()
	testrun.True(t, "the standby is synchronous", func() bool {
		return strings.Contains(fetch(t, "http://"+p.members[p.primary].api+"/cluster"), `"sync_standby"`)
	})
	p.standby.connect(t, p.admin(p.standby))
}
