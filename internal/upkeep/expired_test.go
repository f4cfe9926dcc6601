package upkeep_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/internal/upkeep"
)

const window = 2 * time.Hour // for which messages of the inbox are kept

// start runs a job until the test ends.
func start(t *testing.T, db *postgres.DB, log *testrun.Log) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		upkeep.DeleteExpired(ctx, db, slog.New(slog.NewTextHandler(log, nil)), window)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		testrun.Receive(t, "the end of the job", ended)
	})
}

// fill writes 1,200 rows that have expired into every table, and one that has not,
// nor will while the test runs.
func fill(t *testing.T, db *postgres.DB) {
	t.Helper()
	for _, sql := range []string{
		`insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
			select 'acme', 'o', n::text, '', 202, '{}', clock_timestamp() + (n - 1200) * interval '1 hour' from generate_series(1, 1201) n`,
		`insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence, finished_at)
			select 'r', n, n, 't', '', '{}', '', 'done', 0, clock_timestamp() + (n - 1202) * interval '1 hour' from generate_series(1, 1201) n`,
	} {
		testdb.Exec(t, db.Pool(), sql)
	}
}

// TestExpired: what has expired goes and no more, also by two at once. A table whose rows cannot be deleted
// holds up no other, and is tried again.
func TestExpired(t *testing.T) {
	testrun.Long(t, "it waits for seconds")
	t.Parallel()
	db, log := testdb.Reused(t), &testrun.Log{}
	fill(t, db)
	testdb.Exec(t, db.Pool(), `alter table inbox rename to elsewhere`)
	start(t, db, log)
	start(t, db, log)
	testrun.Row(t, db, `select count(*) = 1 from idempotency_keys where body is not null`)
	testrun.True(t, "the failure is logged", func() bool {
		return strings.Contains(log.String(), `level=WARN msg="expired rows are not deleted" error="delete done messages: `)
	})
	testdb.Exec(t, db.Pool(), `alter table elsewhere rename to inbox`)
	testrun.Row(t, db, `select count(*) = 1 from inbox`)
	if log := log.String(); strings.Count(log, "level=WARN") != strings.Count(log, `error="delete done messages: `) {
		t.Errorf("a table without a fault fails too:\n%s", log)
	}
	testrun.Row(t, db, `
		select max(n) <= 500
		  from (select count(*) as n from idempotency_keys where body is null group by xmin::text) as commits`)
}

func TestMain(m *testing.M) { testrun.Main(m) }
