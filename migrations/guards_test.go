package migrations_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// guard is one constraint of the schema and something that it refuses.
type guard struct {
	constraint string
	name       string
	before     []string // what is accepted in the same batch
	refused    string
}

// TestGuards makes every constraint of the schema refuse, and looks that the
// rest of the batch went with it.
func TestGuards(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	all := slices.Concat(merchantGuards(), ledgerGuards(), outboxGuards(), inboxGuards(), keyGuards(), stockGuards(), cacheGuards(), webhookGuards(), retentionGuards(), operationsGuards(), projectionGuards())
	for _, g := range all {
		t.Run(g.constraint+"/"+g.name, func(t *testing.T) {
			t.Parallel()
			accepts(t, db, g.before)
			err := commit(t, db, slices.Concat(g.before, []string{g.refused}))
			if got := postgres.Constraint(err); got != g.constraint {
				t.Errorf("refused by %q (%v), want %s", got, err, g.constraint)
			}
			wantNothing(t, db)
		})
	}
	t.Run("every constraint has made itself felt", func(t *testing.T) {
		t.Parallel()
		for _, name := range constraints(t, db) {
			if !slices.ContainsFunc(all, func(g guard) bool { return g.constraint == name }) {
				t.Errorf("nothing here is refused by %s", name)
			}
		}
	})
}

func TestAppendOnly(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	if err := commit(t, db, []string{event("ch_1", 1, "charge.requested.v1", "{}"), posting(1, "a:EUR", "b:EUR", 5)}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, table, statement, says string }{
		{"an event is not changed", "ledger_events", `update ledger_events set type = 'x'`, "ledger_events is append-only: UPDATE refused"},
		{"an event is not deleted", "ledger_events", `delete from ledger_events`, "ledger_events is append-only: DELETE refused"},
		{"events are not truncated", "ledger_events", `truncate ledger_events`, "ledger_events is append-only: TRUNCATE refused"},
		{"not even one that is not there", "ledger_events", `delete from ledger_events where version = 7`, "ledger_events is append-only: DELETE refused"},
		{"an event is not replaced by the way", "ledger_events", event("ch_1", 1, "x", "{}") + ` on conflict (event_id) do update set type = 'x'`, "ledger_events is append-only: UPDATE refused"},
		{"a posting is not changed", "ledger_postings", `update ledger_postings set amount = 6`, "ledger_postings is append-only: UPDATE refused"},
		{"a posting is not deleted", "ledger_postings", `delete from ledger_postings`, "ledger_postings is append-only: DELETE refused"},
		{"postings are not truncated", "ledger_postings", `truncate ledger_postings`, "ledger_postings is append-only: TRUNCATE refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := commit(t, db, []string{test.statement})
			var refusal *pgconn.PgError
			if !errors.As(err, &refusal) || refusal.Code != "23001" || refusal.Message != test.says {
				t.Errorf("the error is %v, want 23001 and %q", err, test.says)
			}
			if postgres.Constraint(err) != "" {
				t.Errorf("it names the constraint %s", postgres.Constraint(err))
			}
			wantNothing(t, db)
			var events, postings, changed int
			err = db.QueryRow(t.Context(), `
select (select count(*) from ledger_events),
       (select count(*) from ledger_postings where amount = 5),
       (select count(*) from ledger_events where type <> 'charge.requested.v1')`).Scan(&events, &postings, &changed)
			if err != nil || events != 1 || postings != 1 || changed != 0 {
				t.Errorf("%d events, %d postings, %d changed: %v", events, postings, changed, err)
			}
		})
	}
	t.Run("every trigger has been met", func(t *testing.T) {
		t.Parallel()
		rows, err := db.Query(t.Context(), `
select tgrelid::regclass::text
  from pg_trigger
 where not tgisinternal
 order by 1`)
		if err != nil {
			t.Fatal(err)
		}
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ledger_events", "ledger_postings"}, tables); diff != "" {
			t.Errorf("tables with triggers (-want +got):\n%s", diff)
		}
	})
}

// commit commits a witness and then the statements.
func commit(t *testing.T, db *postgres.DB, statements []string) error {
	t.Helper()
	b := &pgx.Batch{}
	b.Queue(`insert into outbox_offsets values ($1, 'witness', '0', 0)`, t.Name())
	for _, sql := range statements {
		b.Queue(sql)
	}
	return db.Commit(t.Context(), b)
}

// wantNothing looks that the witness of this test went with its batch.
func wantNothing(t *testing.T, db postgres.Querier) {
	t.Helper()
	var left bool
	err := db.QueryRow(t.Context(), `select exists (select from outbox_offsets where topic = $1)`, t.Name()).Scan(&left)
	if err != nil || left {
		t.Errorf("the rest of the refused batch is there: %v, %v", left, err)
	}
}

// accepts looks that nothing but the last statement is what is refused.
func accepts(t *testing.T, db *postgres.DB, statements []string) {
	t.Helper()
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range statements {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

// constraints are all that the schema has, with unique indexes and without not
// null. Those of goose's own table are not ours.
func constraints(t *testing.T, db postgres.Querier) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), `
select conname::text
  from pg_constraint
 where connamespace = 'public'::regnamespace
   and contype <> 'n'
   and conrelid <> 'schema_migrations'::regclass
 union
select c.relname::text
  from pg_index i
  join pg_class c
    on c.oid = i.indexrelid
 where i.indisunique
   and c.relnamespace = 'public'::regnamespace
   and i.indrelid <> 'schema_migrations'::regclass`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 40 {
		t.Errorf("only %d constraints were found", len(names))
	}
	return names
}
