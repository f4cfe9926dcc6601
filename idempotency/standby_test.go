package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/migrations"
)

// replicatedPair is a primary that waits for its standby at each commit.
type replicatedPair struct {
	primary, standby *local.Server
	db               *postgres.DB // of the primary, with a short commit timeout
	admin            *pgx.Conn    // of the primary; its own statements wait for nothing
	follows          string       // the standby's primary_conninfo
}

func newReplicatedPair(t *testing.T) *replicatedPair {
	t.Helper()
	testdb.Long(t, "it starts two servers")
	primary := testdb.Server(t, local.Options{InMemory: true, Fsync: true})
	testdb.Must(t, migrations.Up(t.Context(), primary.URL("postgres")))
	standby, err := primary.Standby(t.Context())
	testdb.Must(t, err)
	t.Cleanup(func() {
		if err := standby.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &replicatedPair{primary: primary, standby: standby}
	p.admin = connectAdmin(t, primary)
	execute(t, p.admin, `alter system set synchronous_standby_names = 'standby'`)
	execute(t, p.admin, `select pg_reload_conf()`)
	await.Row(t, p.admin, `select exists (select from pg_stat_replication where sync_state = 'sync')`)
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
func (p *replicatedPair) detach(t *testing.T) {
	t.Helper()
	conn := connectAdmin(t, p.standby)
	testdb.Must(t, conn.QueryRow(t.Context(), `show primary_conninfo`).Scan(&p.follows))
	p.follow(t, conn, "")
	await.Row(t, p.admin, `select not exists (select from pg_stat_replication)`)
}

func (p *replicatedPair) attach(t *testing.T) {
	t.Helper()
	p.follow(t, connectAdmin(t, p.standby), p.follows)
	await.Row(t, p.admin, `select exists (select from pg_stat_replication where sync_state = 'sync')`)
}

func (p *replicatedPair) follow(t *testing.T, standby *pgx.Conn, primary string) {
	t.Helper()
	execute(t, standby, fmt.Sprintf(`alter system set primary_conninfo = '%s'`, primary))
	execute(t, standby, `select pg_reload_conf()`)
}

// keysOnStandby counts the keys that a failover would find.
func (p *replicatedPair) keysOnStandby(t *testing.T) (n int) {
	t.Helper()
	testdb.Must(t, connectAdmin(t, p.standby).QueryRow(t.Context(), `select count(*) from idempotency_keys`).Scan(&n))
	return n
}

// endWaits ends the waits for the standby as an operator does.
func (p *replicatedPair) endWaits(how string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		execute(t, p.admin, `select `+how+`(pid) from pg_stat_activity where wait_event = 'SyncRep'`)
	}
}

// TestReceive_withoutItsStandbyAnswersNothingThatAFailoverLoses sends a request while
// the standby is away, and lets its commit end in each way in which PostgreSQL makes
// it visible on the primary alone.
func TestReceive_withoutItsStandbyAnswersNothingThatAFailoverLoses(t *testing.T) {
	t.Parallel()
	p := newReplicatedPair(t)
	for i, c := range []struct {
		name    string
		end     func(t *testing.T) // of the wait for the standby
		visible bool               // on the primary afterwards
	}{
		{"a commit that times out", func(*testing.T) {}, false},
		{"a wait that an operator cancels", p.endWaits("pg_cancel_backend"), true},
		{"a wait that an operator terminates", p.endWaits("pg_terminate_backend"), true},
		{"a primary that restarts", func(t *testing.T) {
			t.Helper()
			testdb.Must(t, p.primary.Crash(t.Context()))
			p.admin = connectAdmin(t, p.primary)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := keyOf(fmt.Sprint("k", i))
			p.detach(t)
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				p.mustNotAnswer(t, key)
			}()
			await.Row(t, p.admin, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`)
			c.end(t)
			if c.visible {
				await.Row(t, p.admin, `select count(*) = $1 from idempotency_keys`, i+1)
			}
			await.Receive(t, "the end of the request", sent)
			p.mustNotAnswer(t, key) // again: where it is visible, as a replay
			p.attach(t)
			await.True(t, "the request is answered", func() bool {
				_, err := idempotency.Receiver{DB: p.db}.Receive(t.Context(), key, theRequest(), effect)
				return err == nil
			})
			await.True(t, "the standby has the key", func() bool { return p.keysOnStandby(t) == i+1 })
			wantEffects(t, p.db, i+1)
		})
	}
}

func (p *replicatedPair) mustNotAnswer(t *testing.T, key idempotency.Key) {
	t.Helper()
	got, err := idempotency.Receiver{DB: p.db}.Receive(t.Context(), key, theRequest(), effect)
	if err == nil {
		t.Errorf("answered %+v, and the standby has %d keys", got, p.keysOnStandby(t))
	} else if !errors.Is(err, idempotency.ErrUnknown) && !errors.Is(err, idempotency.ErrInFlight) {
		t.Errorf("the error is %v, want ErrUnknown or ErrInFlight", err)
	}
}

func TestOnce_withoutItsStandbyReplaysNothingThatAFailoverLoses(t *testing.T) {
	t.Parallel()
	p := newReplicatedPair(t)
	for _, how := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
		t.Run(how, func(t *testing.T) {
			w, o := &work{}, order{ID: how}
			p.detach(t)
			ended := make(chan result[receipt], 1)
			go func() { ended <- once(t.Context(), p.db.Pool(), o, w.do) }()
			await.Row(t, p.admin, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`)
			p.endWaits(how)(t)
			first := await.Receive(t, "the call", ended)
			t.Logf("%+v", first)
			if got := once(t.Context(), p.db.Pool(), o, w.do); !errors.Is(got.Err, idempotency.ErrUnknown) {
				t.Errorf("%+v", got)
			}
			p.attach(t)
			if got := once(t.Context(), p.db.Pool(), o, w.do); got.Err != nil || !got.Replayed || w.calls.Load() != 1 {
				t.Errorf("then %+v", got)
			}
		})
	}
}
