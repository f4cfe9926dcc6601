package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestPromises_withoutTheStandby sends a request while the standby is away, and lets its commit
// end in each way in which PostgreSQL makes it visible on the primary alone. Until the standby is
// back nothing is replayed, since a failover would lose it.
func TestPromises_withoutTheStandby(t *testing.T) {
	testdb.Long(t, "it starts a server")
	t.Parallel()
	server, whole := testrun.Server(t, local.Options{InMemory: true, Fsync: true}), t
	db := testdb.OpenAt(t, testdb.Migrated(t, server, "service"), postgres.Options{CommitTimeout: time.Second, LockTimeout: 500 * time.Millisecond})
	standby := testdb.StandbyOf(t, server, "service")
	const waiting = `from pg_stat_activity where wait_event = 'SyncRep' and datname = 'service'`
	endWaits := func(how string) func(*testing.T) { // as an operator does
		return func(t *testing.T) {
			t.Helper()
			testdb.Exec(t, standby, `select `+how+`(pid) `+waiting)
		}
	}
	keys := 0
	for _, e := range entries {
		for name, end := range map[string]func(*testing.T){ // of the wait for the standby
			"an operator cancels the wait":    endWaits("pg_cancel_backend"),
			"an operator terminates the wait": endWaits("pg_terminate_backend"),
			"the primary restarts": func(t *testing.T) {
				t.Helper()
				testdb.Must(t, server.Restart(t.Context()))
				standby = testdb.StandbyOf(whole, server, "service")
			},
		} {
			t.Run(e.name+", "+name, func(t *testing.T) {
				keys++
				ask := call{key: fmt.Sprint("k", keys)}
				standby.Leaves(t)
				sent, back := make(chan struct{}), atomic.Bool{}
				go func() {
					defer close(sent)
					got := e.do(t.Context(), on(db), ask)
					if e.name == "Receive" && got.Err == nil && !back.Load() { // a pool of pgx does not show what the others need to know
						t.Errorf("answered %+v without the standby", got)
					}
				}()
				testrun.Row(t, standby, `select exists (select `+waiting+`)`)
				end(t)
				testrun.Row(t, standby, `select count(*) = $1 from idempotency_keys`, keys)
				soon, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if got := e.do(soon, on(db), ask); !errors.Is(got.Err, idempotency.ErrUnknown) {
					t.Errorf("a replay without the standby: %+v", got)
				}
				back.Store(true)
				standby.Returns(t)
				testrun.Receive(t, "the end of the request", sent)
				testrun.True(t, "the request is answered", func() bool {
					got := e.do(t.Context(), on(db), ask)
					return got.Err == nil && got.Replayed
				})
				wantEffects(t, db, keys)
			})
		}
	}
}
