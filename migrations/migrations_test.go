package migrations_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/migrations"
	"github.com/payonce/payonce/migrations/version"
	"github.com/payonce/payonce/outbox"
)

func TestMain(m *testing.M) { testrun.Main(m) }

func TestUp_appliesEachMigrationOnce(t *testing.T) {
	testrun.Long(t, "it makes every migration")
	t.Parallel()
	address := testdb.Empty(t)
	conn := testdb.Session(t, address)
	// Another application's versions, as golang-migrate writes them, are not touched.
	testdb.Exec(t, conn, `create table schema_migrations as select 7 as version, false as dirty`)
	wantPending(t, conn, true)
	for range 2 {
		var programs errgroup.Group
		for range 4 {
			programs.Go(func() error { return migrations.Up(t.Context(), address) })
		}
		testdb.Must(t, programs.Wait())
		wantPending(t, conn, false)
		var want []string
		for _, m := range migrations.All() {
			want = append(want, strconv.FormatInt(m.Version, 10))
		}
		got := testdb.All[string](t, conn, `select version_id::text from payonce_migrations where version_id > 0 order by id`)
		testrun.Same(t, "applied", want, got)
	}
	if last := migrations.All()[len(migrations.All())-1]; int64(version.Latest) != last.Version {
		t.Errorf("the latest is %d, want that of %s", version.Latest, last.Name)
	}
	// A newer program has added a migration: an old one runs on through the upgrade.
	testdb.Exec(t, conn, `insert into payonce_migrations (version_id, is_applied) values (99999, true)`)
	wantPending(t, conn, false)
}

func TestUp_thatFails_leavesNothingOfTheMigration(t *testing.T) {
	t.Parallel()
	address := testdb.Empty(t)
	conn := testdb.Session(t, address)
	testdb.Exec(t, conn, `create table account_balances ()`) // the last table of the ledger, so its migration fails late
	if err := migrations.Up(t.Context(), address); err == nil || !strings.Contains(err.Error(), "account_balances") {
		t.Errorf("Up: %v, want an error that names account_balances", err)
	}
	testrun.Same(t, "what the failed migration has left", []string{""}, testdb.All[string](t, conn, `select coalesce(to_regclass('followers')::text, '')`))
	wantPending(t, conn, true)
}

func wantPending(t *testing.T, conn *pgx.Conn, want bool) {
	t.Helper()
	if got, err := version.Pending(t.Context(), conn); err != nil || got != want {
		t.Errorf("pending: %v, %v, want %v", got, err, want)
	}
}

// TestSchema_isAppliedInTheSchemaOfTheSearchPath applies the packages' schemas as docs/how-to/use-the-packages.md
// says, in a schema of another application, and by goose in one more.
func TestSchema_isAppliedInTheSchemaOfTheSearchPath(t *testing.T) {
	t.Parallel()
	url, files := testdb.Empty(t), fstest.MapFS{}
	conn := testdb.Session(t, url)
	testdb.Exec(t, conn, `create schema app`)
	testdb.Exec(t, conn, `create schema shop`)
	for n, schema := range []string{idempotency.Schema(), outbox.Schema(), inbox.Schema()} {
		files[fmt.Sprintf("%05d_schema.sql", n+1)] = &fstest.MapFile{Data: []byte(schema)}
	}
	db := stdlib.OpenDB(*testdb.Session(t, url+"&search_path=shop").Config())
	t.Cleanup(func() { _ = db.Close() })
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName("versions"))
	testdb.Must(t, err)
	_, err = provider.Up(t.Context())
	testdb.Must(t, err)
	testdb.Exec(t, conn, `set search_path = app`)
	testdb.Exec(t, conn, idempotency.Schema()+outbox.Schema()+inbox.Schema(), pgx.QueryExecModeSimpleProtocol)
	const strays = `select relname::text from pg_class where relnamespace = 'public'::regnamespace`
	testrun.Same(t, "outside the schema", []string{}, testdb.All[string](t, conn, strays))
	testdb.Exec(t, conn, `select from app.idempotency_keys, app.inbox, app.outbox, shop.idempotency_keys, shop.inbox, shop.outbox`)
}

// TestSchema_guardsCompareBytes: the order of "C" is that of the bytes and never changes.
// The database's default collation is libc's or ICU's, and changes with their version: then
// a unique index searches in the wrong place and accepts a key a second time.
func TestSchema_guardsCompareBytes(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for _, found := range testdb.All[string](t, db, read(t, "collated.sql")) {
		t.Errorf(`%s, want "C"`, found)
	}
	// The query finds a column, an expression and a predicate without a collation.
	testdb.Exec(t, db.Pool(), `
create table forgotten (a text, b varchar(9), c jsonb, d text, e text check (e <> ''), f text[], g uuid primary key, h text);
create unique index forgotten_column on forgotten (a, b, f);
create unique index forgotten_expression on forgotten ((c ->> 'x'));
create index forgotten_predicate on forgotten (g) where d = 'x'`)
	want := []string{
		"column forgotten.a, in forgotten_column, has collation default",
		"column forgotten.b, in forgotten_column, has collation default",
		"column forgotten.d, in forgotten_predicate, has collation default",
		"column forgotten.e, in forgotten_e_check, has collation default",
		"column forgotten.f, in forgotten_column, has collation default",
		"key 1 of index forgotten_column has collation default",
		"key 1 of index forgotten_expression has collation default",
		"key 2 of index forgotten_column has collation default",
		"key 3 of index forgotten_column has collation default",
	}
	testrun.Same(t, "of the table that forgot it", want, testdb.All[string](t, db, read(t, "collated.sql")))
}

// guard is a constraint, and statements of which it refuses the last.
type guard struct {
	constraint, name string
	statements       []string
}

// guards reads testdata/guards.sql: how its functions are created, and its blocks.
func guards(t *testing.T) (functions string, all []guard) {
	t.Helper()
	blocks := strings.Split(read(t, "guards.sql"), "\n\n-- ")
	for _, block := range blocks[1:] {
		title, statements, _ := strings.Cut(block, "\n")
		constraint, name, _ := strings.Cut(title, ": ")
		all = append(all, guard{constraint, name, strings.Split(strings.TrimSpace(statements), ";\n")})
	}
	return blocks[0], all
}

// TestGuards makes every constraint of the schema refuse a statement.
func TestGuards(t *testing.T) {
	testrun.Long(t, "it tries each guard")
	t.Parallel()
	db := testdb.Open(t)
	functions, all := guards(t)
	testdb.Exec(t, db.Pool(), functions)
	found := constraints(t, db)
	for _, g := range all {
		t.Run(g.constraint+"/"+g.name, func(t *testing.T) {
			t.Parallel()
			before := testdb.Begin(t, db.Pool(), `select`)
			for _, accepted := range g.statements[:len(g.statements)-1] {
				testdb.Exec(t, before, accepted)
			}
			testdb.Must(t, before.Rollback(t.Context()))
			err := commit(t, db, g.statements...)
			if got := groupcommit.Constraint(err); got != g.constraint {
				t.Errorf("refused by %q (%v), want %s", got, err, g.constraint)
			}
		})
	}
	for _, name := range found {
		if !slices.ContainsFunc(all, func(g guard) bool { return g.constraint == name }) {
			t.Errorf("nothing here is refused by %s", name)
		}
	}
}

// TestAppendOnly: a change is refused whether it finds a row or not.
func TestAppendOnly(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	refuses := func(table, verb, statement string) {
		t.Helper()
		err, says := commit(t, db, statement), table+" is append-only: "+verb+" refused"
		refusal, is := errors.AsType[*pgconn.PgError](err)
		if !is || refusal.Code != "23001" || refusal.Message != says || refusal.ConstraintName != "" {
			t.Errorf("%s: the error is %v, want 23001 and %q", statement, err, says)
		}
	}
	tables := map[string]string{"ledger_events": "type", "ledger_postings": "amount", "operator_actions": "actor"} // with a column
	for table, column := range tables {
		refuses(table, "UPDATE", "update "+table+" set "+column+" = "+column)
		refuses(table, "DELETE", "delete from "+table)
		refuses(table, "TRUNCATE", "truncate "+table)
	}
	refuses("ledger_events", "UPDATE", `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
select event_id, stream_id, version, type, merchant_id, data, metadata, now()
  from ledger_events
    on conflict (event_id) do update set type = 'x'`)
	found := testdb.All[string](t, db, `select tgrelid::regclass::text from pg_trigger where tgfoid = 'refuse_change'::regproc order by 1`)
	testrun.Same(t, "append-only tables", slices.Sorted(maps.Keys(tables)), found)
}

func commit(t *testing.T, db *postgres.DB, statements ...string) error {
	t.Helper()
	b := &pgx.Batch{}
	for _, sql := range statements {
		b.Queue(sql)
	}
	return db.Commit(t.Context(), b)
}

// constraints are all that the schema has, with unique indexes and without not
// null. Those of goose's own table are not ours.
func constraints(t *testing.T, db postgres.Querier) []string {
	t.Helper()
	names := testdb.All[string](t, db, `
select conname::text
  from pg_constraint
 where connamespace = 'public'::regnamespace
   and contype <> 'n'
   and conrelid <> 'payonce_migrations'::regclass
 union
select c.relname::text
  from pg_index i
  join pg_class c
    on c.oid = i.indexrelid
 where i.indisunique
   and c.relnamespace = 'public'::regnamespace
   and i.indrelid <> 'payonce_migrations'::regclass`)
	if len(names) < 40 {
		t.Errorf("only %d constraints were found", len(names))
	}
	return names
}

// TestRestoreGuard: the mark stays with the files, and with nothing that is dumped
// and restored. TestRestore_ofAnOlderDump_capturesNothingTwice in e2e has true dumps.
func TestRestoreGuard(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
	t.Parallel()
	for name, test := range map[string]struct {
		statements []string
		own        bool
	}{
		"a database that was made from a template":       {nil, true},
		"tables that were written anew where they stand": {[]string{`vacuum full`, `vacuum freeze restore_mark`, `cluster restore_mark using restore_mark_pkey`}, true},
		"a row that was locked":                          {[]string{`select only_one from restore_mark for update`}, true},
		"a row that another transaction wrote":           {[]string{`update restore_mark set written_in = written_in`}, false},
		"rows without their table":                       {[]string{`create table dump as select only_one, written_in from restore_mark`, `truncate restore_mark`, `insert into restore_mark table dump`}, false},
		"no row":                                         {[]string{`truncate restore_mark`}, false},
		"a table that came through a dump, by chance in the transaction of the same number": {[]string{`drop view restore_guard; drop table restore_mark`, anew()}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			for _, sql := range test.statements {
				testdb.Exec(t, db.Pool(), sql)
			}
			if own := testdb.One[bool](t, testdb.As(t, db, postgres.RoleWorker), `select is_original from restore_guard`); own != test.own {
				t.Errorf("original: %t, want %t", own, test.own)
			}
		})
	}
}

// anew makes the mark as a dump does, without the column that is gone.
func anew() string {
	_, sql, _ := strings.Cut(ledger.Schema(), "create table restore_mark")
	gone := strings.NewReplacer("  dropped    boolean,\n", "", "alter table restore_mark\n drop column dropped;\n", "")
	return "create table restore_mark" + gone.Replace(sql) + ";\ngrant select on restore_guard to payonce_worker"
}
