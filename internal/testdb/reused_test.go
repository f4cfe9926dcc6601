package testdb_test

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// childVariable makes TestProcess the process that it watches.
const childVariable = "PAYONCE_TESTDB_CHILD"

// TestProcess: two processes share the server of TEST_DATABASE_URL, and leave nothing there but the template.
func TestProcess(t *testing.T) {
	t.Parallel()
	if os.Getenv(childVariable) != "" {
		testdb.Reused(t)                                  // it is idle when the process ends
		_, err := pgx.Connect(t.Context(), testdb.URL(t)) // it is connected when its database is dropped
		testdb.Must(t, err)
		return
	}
	server := testrun.Server(t, local.Options{Fsync: true})
	children := make([]*exec.Cmd, 2)
	for i := range children {
		children[i] = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcess$")
		children[i].Env = append(os.Environ(), childVariable+"=1", "TEST_DATABASE_URL="+server.URL("postgres"))
		children[i].Stdout, children[i].Stderr = t.Output(), t.Output()
		testdb.Must(t, children[i].Start())
	}
	testdb.Must(t, errors.Join(children[0].Wait(), children[1].Wait()))
	left := testdb.All[string](t, testdb.Session(t, server.URL("postgres")), `
select regexp_replace(datname, '[0-9a-f]{16}$', '…') from pg_database order by datname collate "C"`)
	testrun.Same(t, "databases afterwards", []string{"payonce_template_…", "postgres", "template0", "template1"}, left)
}

// TestEmptied_looksLikeAFreshDatabase lets tests use databases one after the
// other, and compares what each of them is given with a fresh database.
func TestEmptied_looksLikeAFreshDatabase(t *testing.T) { //nolint:paralleltest // the subtests use the same databases
	fresh := content(t, testdb.Open(t))
	for _, test := range []struct{ name, statement string }{
		{"a row is inserted", `insert into merchants (merchant_id) values ('acme')`},
		{"a row of the migrations is updated", `update followers set position = 7`},
		{"a sequence is used", `select nextval('outbox_id_seq')`},
		{"a table is created", `create table kept (id int)`},
		{"a table is dropped", `drop table payonce_migrations`},
		{"a trigger is disabled", `alter table ledger_postings disable trigger all`},
		{"the tables are marked anew", `update restore_mark set written_in = written_in`},
		{"nothing is done", `select 1`},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := testdb.Reused(t)
			testrun.Same(t, "the database, with a fresh one as wanted", fresh, content(t, db))
			testdb.Exec(t, db.Pool(), test.statement)
		})
	}
}

// content is what the tables, sequences, constraints and triggers of a database
// hold, as far as it is the same in every fresh one.
func content(t *testing.T, db *postgres.DB) []string {
	t.Helper()
	return testdb.All[string](t, db, `
select format('table %s: %s', relname, (xpath('//c/text()', query_to_xml(format('select count(*) as c from %I', relname), false, true, '')))[1])
  from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace
union all
select format('sequence %s: %s', sequencename, last_value) from pg_sequences where schemaname = 'public'
union all
select format('constraint %s', conname) from pg_constraint where connamespace = 'public'::regnamespace
union all
select format('trigger %s %s', tgname, tgenabled) from pg_trigger where not tgisinternal
union all
select format('internal triggers %s %s', tgenabled, count(*)) from pg_trigger where tgisinternal group by tgenabled
union all
select format('grants %s: %s', relname, relacl) from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'
union all
select format('original %s', is_original) from restore_guard
union all
select format('follower %s', f::text) from followers f
order by 1`)
}
