package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// stopMidway sends the beginning of a batch, as a program does that is stopped
// while it sends one, and returns when the server waits for the rest.
func stopMidway(t *testing.T, db *postgres.DB, address, name string) {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	testdb.Must(t, err)
	config.RuntimeParams["application_name"] = name
	conn, err := pgx.ConnectConfig(t.Context(), config)
	testdb.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	f := conn.PgConn().Frontend()
	f.Send(&pgproto3.Parse{Query: "insert into effects (id, twin) values (1, 1)"})
	f.Send(&pgproto3.Bind{})
	f.Send(&pgproto3.Execute{})
	f.Send(&pgproto3.Flush{})
	testdb.Must(t, f.Flush())
	const waits = `
select count(*) = 1
  from pg_stat_activity
 where datname = current_database()
   and application_name = $1
   and state = 'active'
   and wait_event = 'ClientRead'
   and backend_xid is not null`
	await.Row(t, db, waits, name)
}

func TestEndStuck_endsTheSessionsOfStoppedPrograms(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db, address := effects(t, postgres.Options{Application: "payonce-test", LockTimeout: 50 * time.Millisecond})
	worker := testdb.OpenAt(t, address, postgres.Options{Role: postgres.RoleWorker})
	stopMidway(t, db, address, "payonce-api")
	if err := db.Commit(t.Context(), effect(1)); groupcommit.OutcomeOf(err) != groupcommit.Locked {
		t.Errorf("beside a half-sent batch a commit ends with %v", err)
	}
	for _, spared := range []struct {
		name, prefix string
		patience     time.Duration
	}{
		{"one that is young", "payonce-", time.Hour},
		{"one of another service", "other-", 0},
	} {
		if n, err := postgres.EndStuck(t.Context(), worker, spared.prefix, spared.patience, time.Hour); n != 0 || err != nil {
			t.Errorf("%s: %d ended, %v", spared.name, n, err)
		}
	}
	if n, err := postgres.EndStuck(t.Context(), worker, "payonce-", postgres.HalfSent, time.Hour); n != 0 || err != nil {
		t.Errorf("%d ended at once, %v", n, err)
	}
	if n, err := postgres.EndStuck(t.Context(), worker, "payonce-", 0, time.Hour); n != 1 || err != nil {
		t.Fatalf("%d ended, %v", n, err)
	}
	await.True(t, "a commit succeeds", func() bool { return db.Commit(t.Context(), effect(1)) == nil })
	var ids int
	if err := db.QueryRow(t.Context(), `select count(*) from effects`).Scan(&ids); err != nil || ids != 1 {
		t.Errorf("%d effects, %v", ids, err)
	}
}
