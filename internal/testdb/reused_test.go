package testdb_test

import (
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// TestEmptied_looksLikeAFreshDatabase lets tests use databases one after the
// other, and compares what each of them is given with a fresh database.
func TestEmptied_looksLikeAFreshDatabase(t *testing.T) { //nolint:paralleltest // the subtests use the same databases
	testrun.Long(t, "it compares whole databases")
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
