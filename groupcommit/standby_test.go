package groupcommit_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// awayStandby is a server whose commits wait for a standby, and a session of it that waits for none.
type awayStandby struct {
	server *local.Server
	admin  *pgx.Conn
}

func newAwayStandby(t *testing.T) *awayStandby {
	t.Helper()
	testdb.Long(t, "it starts a server")
	s := &awayStandby{server: testdb.Server(t, local.Options{InMemory: true, Fsync: true})}
	var err error
	s.admin, err = pgx.Connect(t.Context(), s.server.URL("postgres"))
	testdb.Must(t, err)
	t.Cleanup(func() { _ = s.admin.Close(context.WithoutCancel(t.Context())) })
	testdb.Exec(t, s.admin, `set synchronous_commit = local`)
	return s
}

// leaves lets the commits of all sessions wait, and returns when one does.
func (s *awayStandby) leaves(t *testing.T) {
	t.Helper()
	s.setStandbys(t, `set synchronous_standby_names = 'away'`, "away")
	first, err := pgx.Connect(t.Context(), s.server.URL("postgres"))
	testdb.Must(t, err)
	var waited atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for err == nil && !waited.Load() {
			_, err = first.Exec(t.Context(), `select pg_logical_emit_message(true, '', '')`)
		}
	}()
	testrun.Row(t, s.admin, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`)
	waited.Store(true)
	t.Cleanup(func() {
		<-ended
		_ = first.Close(context.WithoutCancel(t.Context()))
	})
}

// returns ends the waits of all commits.
func (s *awayStandby) returns(t *testing.T) {
	t.Helper()
	s.setStandbys(t, `reset synchronous_standby_names`, "")
}

func (s *awayStandby) setStandbys(t *testing.T, change, want string) {
	t.Helper()
	testdb.Exec(t, s.admin, `alter system `+change)
	testdb.Exec(t, s.admin, `select pg_reload_conf()`)
	testrun.Row(t, s.admin, `select current_setting('synchronous_standby_names') = $1`, want)
}

// waiting counts the sessions whose commits wait for the standby, those that no client has included.
func (s *awayStandby) waiting(t *testing.T) int {
	t.Helper()
	return testdb.One[int](t, s.admin, `select count(*) from pg_stat_activity where wait_event = 'SyncRep' and datname like 'of_%'`)
}

// effects is a database of the server with the table effects, in a pool of so many connections.
func (s *awayStandby) effects(t *testing.T, conns int32) *postgres.DB {
	t.Helper()
	name := "of_" + strconv.Itoa(int(conns))
	testdb.Exec(t, s.admin, `create database `+name)
	db := testdb.OpenAt(t, s.server.URL(name), postgres.Options{MaxConns: conns, Writes: declared(), CommitTimeout: time.Second})
	testdb.Exec(t, db.Pool(), `create table effects (id int constraint effects_once primary key, twin int)`)
	testdb.Warm(t, db.Pool(), int(conns))
	return db
}

// While no standby confirms, at most half of the pool's connections, and as many sessions of the
// server, are in commits, however often callers leave and try again. What was not sent never is,
// and what was is committed once the standby is back.
func TestCommit_thatHangsLeavesConnectionsToReads(t *testing.T) {
	t.Parallel()
	s := newAwayStandby(t)
	for _, test := range []struct {
		conns int32
		want  int
	}{{1, 1}, {5, 2}} {
		db := s.effects(t, test.conns)
		s.leaves(t)
		next, units := 0, []func(context.Context) error{}
		for range 8 * test.want {
			next += 3
			undeclared, read := &pgx.Batch{}, &pgx.Batch{}
			undeclared.Queue(`insert into effects (id) values ($1)`, next)
			read.Queue(`insert into effects (id) values ($1) returning id`, next+1).QueryRow(func(row pgx.Row) error { return row.Scan(new(int)) })
			units = append(units, committing(db, undeclared, read, batch(next+2))...)
		}
		errs := make([]error, len(units))
		var all sync.WaitGroup
		for i, unit := range units {
			all.Go(func() { errs[i] = unit(t.Context()) })
		}
		all.Wait()
		var sent []int
		for i, err := range errs {
			switch {
			case groupcommit.OutcomeOf(err) == groupcommit.Unknown:
				sent = append(sent, i+3)
			case groupcommit.OutcomeOf(err) != groupcommit.NotCommitted || !errors.Is(err, groupcommit.ErrNotSent):
				t.Errorf("%d connections: the error is %v, want an unknown outcome or ErrNotSent", test.conns, err)
			}
		}
		if err := db.Commit(t.Context(), batch(1)); !errors.Is(err, groupcommit.ErrNotSent) {
			t.Errorf("%d connections: a caller that comes later gets %v, want ErrNotSent", test.conns, err)
		}
		testrun.True(t, "the sessions of what was sent are in commits", func() bool { return s.waiting(t) >= test.want })
		if got := s.waiting(t); got != test.want || len(sent) < got {
			t.Errorf("%d connections: %d sessions are in commits, and %d batches were sent, want %d sessions", test.conns, got, len(sent), test.want)
		}
		if test.conns > 1 {
			ctx, cancel := context.WithTimeout(t.Context(), testrun.Stall)
			testdb.Must(t, db.QueryRow(ctx, `select`).Scan())
			cancel()
		}
		if !testrun.Within(testrun.Stall, db.Committer().Stalled) {
			t.Errorf("%d connections: the committer is not stalled", test.conns)
		}
		s.returns(t)
		testrun.True(t, "what was sent is committed", func() bool { return slices.Equal(stored(t, db), sent) })
		testrun.True(t, "a commit is confirmed", func() bool { next++; return db.Commit(t.Context(), batch(next+2)) == nil })
		if slices.Contains(stored(t, db), 1) {
			t.Errorf("%d connections: what was not sent is committed", test.conns)
		}
		if db.Committer().Stalled() || db.Committer().Stats().Late != 0 {
			t.Errorf("%d connections: the committer is still stalled", test.conns)
		}
	}
}
