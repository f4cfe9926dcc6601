package testdb

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testrun"
)

// Session connects to a database until the test ends.
func Session(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	Must(tb, err)
	tb.Cleanup(func() { _ = conn.Close(context.WithoutCancel(tb.Context())) })
	return conn
}

// Standby stands for a synchronous standby that does not exist. Between Leaves and Returns every commit of the server
// waits for it, except those of this session.
type Standby struct {
	*pgx.Conn

	server *local.Server
}

// StandbyOf returns the standby of a server, which has not left, with a session of a database.
func StandbyOf(tb testing.TB, server *local.Server, database string) Standby {
	tb.Helper()
	s := Standby{Session(tb, server.URL(database)), server}
	Exec(tb, s, `set synchronous_commit = local`)
	return s
}

// Leaves names a synchronous standby that is away, and returns when a commit waits for it: the processes of the server
// read the setting at different times. That commit is of the database postgres, and waits until Returns.
func (s Standby) Leaves(tb testing.TB) {
	tb.Helper()
	s.set(tb, `set synchronous_standby_names = 'away'`, "away")
	first := Session(tb, s.server.URL("postgres"))
	Exec(tb, first, `set synchronous_commit = on`)
	var waits atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for err := error(nil); err == nil && !waits.Load(); {
			_, err = first.Exec(tb.Context(), `select pg_logical_emit_message(true, '', '')`)
		}
	}()
	tb.Cleanup(func() { <-ended })
	testrun.Row(tb, s, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`)
	waits.Store(true)
}

// Returns ends the waits of all commits.
func (s Standby) Returns(tb testing.TB) {
	tb.Helper()
	s.set(tb, `reset synchronous_standby_names`, "")
}

func (s Standby) set(tb testing.TB, change, want string) {
	tb.Helper()
	Exec(tb, s, `alter system `+change)
	Exec(tb, s, `select pg_reload_conf()`)
	testrun.Row(tb, s, `select current_setting('synchronous_standby_names') = $1`, want)
}
