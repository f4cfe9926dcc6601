package migrations_test

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/migrations"
	"github.com/payonce/payonce/migrations/version"
	"github.com/payonce/payonce/outbox"
)

func TestMain(m *testing.M) { testrun.Main(m) }

func TestUp_appliesEachMigrationOnce(t *testing.T) {
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
	for name, test := range map[string]struct{ before, options, want string }{
		"a database of before v0.2.0 is refused": {
			`create table ledger_events ()`, "", "before v0.2.0",
		},
		"a database of v0.1.0 is refused": {
			`create table payonce_migrations (version_id bigint, is_applied boolean); insert into payonce_migrations values (28, true)`, "", "before v0.2.0",
		},
		// The last table of the ledger is there already, so its migration fails late.
		"a table is there already": {`create table account_balances ()`, "", "account_balances"},
		"a table is locked":        {`lock table pg_class in share mode`, "&lock_timeout=100", "55P03"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testdb.Empty(t)
			conn := testdb.Session(t, address)
			testdb.Exec(t, conn, `begin`)
			testdb.Exec(t, conn, test.before)
			if test.options == "" {
				testdb.Exec(t, conn, `commit`)
			}
			if err := migrations.Up(t.Context(), address+test.options); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Up: %v, want an error that names %q", err, test.want)
			}
			if left := testdb.All[string](t, conn, `select coalesce(to_regclass('followers')::text, '')`); left[0] != "" {
				t.Errorf("the failed migration has left %v", left)
			}
			wantPending(t, conn, true)
		})
	}
}

func wantPending(t *testing.T, conn *pgx.Conn, want bool) {
	t.Helper()
	if got, err := version.Pending(t.Context(), conn); err != nil || got != want {
		t.Errorf("pending: %v, %v, want %v", got, err, want)
	}
}

// TestSchema_isAppliedInTheSchemaOfTheSearchPath applies the packages' files as another
// application does, in a schema of its own.
func TestSchema_isAppliedInTheSchemaOfTheSearchPath(t *testing.T) {
	t.Parallel()
	schemas := map[string]string{"idempotency": idempotency.Schema(), "inbox": inbox.Schema(), "outbox": outbox.Schema()}
	for name, apply := range map[string]func(t *testing.T, url, name string){
		"by goose": func(t *testing.T, url, name string) {
			t.Helper()
			db := stdlib.OpenDB(*testdb.Session(t, url).Config())
			t.Cleanup(func() { _ = db.Close() })
			files := fstest.MapFS{"00001_" + name + ".sql": {Data: []byte(schemas[name])}}
			provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithTableName("shop_versions_"+name))
			testdb.Must(t, err)
			_, err = provider.Up(t.Context())
			testdb.Must(t, err)
		},
		"by psql": func(t *testing.T, url, name string) {
			t.Helper()
			if _, err := exec.LookPath("psql"); err != nil {
				t.Skip("not run: there is no psql")
			}
			url = strings.Replace(url, "&search_path=", "&options=-csearch_path%3D", 1)
			out, err := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", "../"+name+"/schema.sql", url).CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Fatalf("psql: %v\n%s", err, out)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.Empty(t)
			conn := testdb.Session(t, url)
			testdb.Exec(t, conn, `create schema app`)
			for of := range schemas {
				apply(t, url+"&search_path=app", of)
			}
			const strays = `select relname::text from pg_class where relnamespace = 'public'::regnamespace`
			if stray := testdb.All[string](t, conn, strays); len(stray) > 0 {
				t.Errorf("outside the schema: %v", stray)
			}
			testdb.Exec(t, conn, `select from app.idempotency_keys, app.inbox, app.outbox`)
		})
	}
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
