package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/migrations"
)

// replicatedPair is a primary that waits for its standby at each commit.
type replicatedPair struct {
	primary, standby *local.Server
	db               *postgres.DB // of the primary, with a short commit timeout
	admin            *pgx.Conn    // of the primary; its own statements wait for nothing
}

func newReplicatedPair(t *testing.T) *replicatedPair {
	t.Helper()
	testdb.Long(t, "it starts two servers")
	primary := testrun.Server(t, local.Options{InMemory: true, Fsync: true})
	testdb.Must(t, migrations.Up(t.Context(), primary.URL("postgres")))
	standby, err := primary.Standby(t.Context())
	testdb.Must(t, err)
	t.Cleanup(func() { _ = standby.Close() })
	p := &replicatedPair{primary: primary, standby: standby, admin: connectAdmin(t, primary)}
	execute(t, p.admin, `alter system set synchronous_standby_names = 'standby'`)
	execute(t, p.admin, `select pg_reload_conf()`)
	testrun.Row(t, p.admin, `select exists (select from pg_stat_replication where sync_state = 'sync')`)
	p.db = testdb.OpenAt(t, primary.URL("postgres"), postgres.Options{CommitTimeout: time.Second, LockTimeout: 500 * time.Millisecond})
	return p
}

func connectAdmin(t *testing.T, s *local.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	testdb.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	execute(t, conn, `set synchronous_commit = local`)
	return conn
}

func execute(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// detach ends the standby's replication, so that commits wait for it.
func (p *replicatedPair) detach(t *testing.T) (attach func()) {
	t.Helper()
	conn := connectAdmin(t, p.standby)
	follow := func(primary string) {
		execute(t, conn, fmt.Sprintf(`alter system set primary_conninfo = '%s'`, primary))
		execute(t, conn, `select pg_reload_conf()`)
	}
	var primary string
	testdb.Must(t, conn.QueryRow(t.Context(), `show primary_conninfo`).Scan(&primary))
	follow("")
	testrun.Row(t, p.admin, `select not exists (select from pg_stat_replication)`)
	return func() {
		follow(primary)
		testrun.Row(t, p.admin, `select exists (select from pg_stat_replication where sync_state = 'sync')`)
	}
}

// endWaits ends the waits for the standby as an operator does.
func (p *replicatedPair) endWaits(how string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		execute(t, p.admin, `select `+how+`(pid) from pg_stat_activity where wait_event = 'SyncRep'`)
	}
}

// TestPromises_withoutTheStandby sends a request while the standby is away, and lets its commit
// end in each way in which PostgreSQL makes it visible on the primary alone. Until the standby is
// back nothing is replayed, since a failover would lose it.
func TestPromises_withoutTheStandby(t *testing.T) {
	t.Parallel()
	p, whole := newReplicatedPair(t), t
	keys := 0
	for _, e := range entries {
		for name, end := range map[string]func(t *testing.T){ // of the wait for the standby
			"an operator cancels the wait":    p.endWaits("pg_cancel_backend"),
			"an operator terminates the wait": p.endWaits("pg_terminate_backend"),
			"the primary restarts": func(t *testing.T) {
				t.Helper()
				testdb.Must(t, p.primary.Restart(t.Context()))
				p.admin = connectAdmin(whole, p.primary)
			},
		} {
			t.Run(e.name+", "+name, func(t *testing.T) {
				keys++
				ask := call{key: fmt.Sprint("k", keys)}
				attach := p.detach(t)
				sent, back := make(chan struct{}), atomic.Bool{}
				go func() {
					defer close(sent)
					got := e.do(t.Context(), on(p.db), ask)
					if e.name == "Receive" && got.Err == nil && !back.Load() { // a pool of pgx does not show what the others need to know
						t.Errorf("answered %+v without the standby", got)
					}
				}()
				testrun.Row(t, p.admin, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`)
				end(t)
				testrun.Row(t, p.admin, `select count(*) = $1 from idempotency_keys`, keys)
				soon, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if got := e.do(soon, on(p.db), ask); !errors.Is(got.Err, idempotency.ErrUnknown) {
					t.Errorf("a replay without the standby: %+v", got)
				}
				back.Store(true)
				attach()
				testrun.Receive(t, "the end of the request", sent)
				testrun.True(t, "the request is answered", func() bool {
					got := e.do(t.Context(), on(p.db), ask)
					return got.Err == nil && got.Replayed
				})
				testrun.Row(t, connectAdmin(t, p.standby), `select count(*) = $1 from idempotency_keys`, keys)
				wantEffects(t, p.db, keys)
			})
		}
	}
}
