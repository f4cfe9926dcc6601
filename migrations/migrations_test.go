package migrations_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/migrations"
	"github.com/payonce/payonce/migrations/version"
)

func TestUp_appliesEachMigrationOnce(t *testing.T) {
	t.Parallel()
	address := testdb.Empty(t)
	conn := connect(t, address)
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
			conn := connect(t, address)
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

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	testdb.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func wantPending(t *testing.T, conn *pgx.Conn, want bool) {
	t.Helper()
	if got, err := version.Pending(t.Context(), conn); err != nil || got != want {
		t.Errorf("pending: %v, %v, want %v", got, err, want)
	}
}
