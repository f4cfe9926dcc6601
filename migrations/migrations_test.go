package migrations_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/migrations"
	"github.com/payonce/payonce/migrations/version"
)

func TestUp(t *testing.T) {
	pgtest.Long(t, "it makes a database for each of many cases")
	t.Parallel()

	t.Run("an empty database has migrations pending, a migrated one none", func(t *testing.T) {
		t.Parallel()
		address := pgtest.Empty(t)
		conn := connect(t, address)
		wantPending(t, conn, true)
		if err := migrations.Up(t.Context(), address); err != nil {
			t.Fatal(err)
		}
		wantPending(t, conn, false)
	})

	t.Run("the second time changes nothing", func(t *testing.T) {
		t.Parallel()
		address := pgtest.Empty(t)
		conn := connect(t, address)
		for range 2 {
			if err := migrations.Up(t.Context(), address); err != nil {
				t.Fatal(err)
			}
		}
		wantEachOnce(t, conn)
	})

	t.Run("four at once apply each migration once", func(t *testing.T) {
		t.Parallel()
		address := pgtest.Empty(t)
		var programs errgroup.Group
		for range 4 {
			programs.Go(func() error { return migrations.Up(t.Context(), address) })
		}
		if err := programs.Wait(); err != nil {
			t.Error(err)
		}
		conn := connect(t, address)
		wantPending(t, conn, false)
		wantEachOnce(t, conn)
	})

	t.Run("a database of an older program is completed", func(t *testing.T) {
		t.Parallel()
		address := pgtest.Empty(t)
		conn := connect(t, address)
		applyFirst(t, conn, 1)
		wantPending(t, conn, true)
		if err := migrations.Up(t.Context(), address); err != nil {
			t.Fatal(err)
		}
		wantPending(t, conn, false)
		wantEachOnce(t, conn)
	})

	t.Run("a database of before v0.1.0 is pending and refused", func(t *testing.T) {
		t.Parallel()
		address := pgtest.Empty(t)
		conn := connect(t, address)
		for version := range 21 {
			record(t, conn, int64(version))
		}
		wantPending(t, conn, true)
		if err := migrations.Up(t.Context(), address); err == nil || !strings.Contains(err.Error(), "before v0.1.0") {
			t.Errorf("Up: %v, want a refusal that names v0.1.0", err)
		}
		wantPending(t, conn, true)
	})

	t.Run("a migration that fails leaves nothing of itself", func(t *testing.T) {
		t.Parallel()
		address := pgtest.Empty(t)
		conn := connect(t, address)
		// The last table of a migration is there already, so the migration fails late.
		if _, err := conn.Exec(t.Context(), `create table ledger_postings ()`); err != nil {
			t.Fatal(err)
		}
		if err := migrations.Up(t.Context(), address); err == nil {
			t.Fatal("it passed")
		}
		var left bool
		err := conn.QueryRow(t.Context(), `select to_regclass('ledger_events') is not null`).Scan(&left)
		if err != nil || left {
			t.Errorf("the first table of the failed migration is there: %v, %v", left, err)
		}
		wantPending(t, conn, true)
	})

	t.Run("a table that somebody uses is not waited for without end", func(t *testing.T) {
		t.Parallel()
		address := pgtest.Empty(t)
		conn := connect(t, address)
		applyFirst(t, conn, len(migrations.All())-1) // the last one alters the inbox
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `lock table inbox in access share mode`); err != nil { // as a dump does
			t.Fatal(err)
		}
		if err := migrations.Up(t.Context(), address+"&lock_timeout=100"); err == nil || !strings.Contains(err.Error(), "55P03") {
			t.Fatalf("the error is %v", err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantPending(t, conn, true)
		if err := migrations.Up(t.Context(), address); err != nil {
			t.Fatal(err)
		}
		wantPending(t, conn, false)
		wantEachOnce(t, conn)
	})

	t.Run("a server out of reach is an error", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := migrations.Up(ctx, pgtest.Empty(t)); err == nil {
			t.Error("it passed")
		}
	})
}

func TestPendingRunsOnThroughAnUpgrade(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.URL(t))
	if _, err := conn.Exec(t.Context(), `insert into schema_migrations (version_id, is_applied) values (99999, true)`); err != nil {
		t.Fatal(err)
	}
	wantPending(t, conn, false)
}

func TestAll_numbersFollowOneAnother(t *testing.T) {
	t.Parallel()
	all := migrations.All()
	for i, m := range all {
		if want := all[0].Version + int64(i); m.Version != want {
			t.Errorf("%s has number %d, want %d", m.Name, m.Version, want)
		}
	}
	if latest := int64(version.Latest); latest != all[len(all)-1].Version {
		t.Errorf("the latest is %d, want that of %s", latest, all[len(all)-1].Name)
	}
}

func TestSchema_opensWithItsPromise(t *testing.T) {
	t.Parallel()
	opening := regexp.MustCompile(`^-- Promise: [a-zA-Z]`)
	for _, m := range migrations.All() {
		if !opening.MatchString(m.SQL) {
			t.Errorf("the schema of %s does not open with its promise", m.Name)
		}
	}
}

// TestSchema_commentsEveryConstraint: the line above a constraint, an index or a trigger
// says what it refuses or serves.
func TestSchema_commentsEveryConstraint(t *testing.T) {
	t.Parallel()
	guard := regexp.MustCompile(`^ *(constraint|add constraint|create unique index|create index|create trigger)\b`)
	inline := regexp.MustCompile(`^  "?\w+"? +(text|char|bigint|int|smallint|bytea|jsonb?|uuid|xid8|boolean|numeric|interval|timestamptz)\b.* (check \(|references |unique\b|primary key)`)
	for _, m := range migrations.All() {
		found := 0
		lines := strings.Split(m.SQL, "\n")
		for i, line := range lines {
			if inline.MatchString(line) {
				t.Errorf("%s: %q has a constraint without a name", m.Name, line)
			}
			if !guard.MatchString(line) {
				continue
			}
			found++
			above := lines[i-1]
			if strings.HasPrefix(above, "alter table") {
				above = lines[i-2]
			}
			if !strings.HasPrefix(strings.TrimSpace(above), "--") {
				t.Errorf("%s: no comment above %q", m.Name, line)
			}
		}
		if found == 0 {
			t.Errorf("%s has no constraint: does this test still know how they are written?", m.Name)
		}
	}
}

// TestSchema_coreAppliesByItself creates the tables of each package that others may import
// in a database that has nothing else.
func TestSchema_coreAppliesByItself(t *testing.T) {
	t.Parallel()
	for _, m := range migrations.All() {
		switch m.Name {
		case "idempotency", "inbox", "outbox", "ledger":
		default:
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			if _, err := connect(t, pgtest.Empty(t)).Exec(t.Context(), m.SQL); err != nil {
				t.Error(err)
			}
		})
	}
}

// applyFirst applies the first n migrations, as an older program that carried no more did.
func applyFirst(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	record(t, conn, 0) // goose's own
	for _, m := range migrations.All()[:n] {
		if _, err := conn.Exec(t.Context(), m.SQL); err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		record(t, conn, m.Version)
	}
}

// record writes into goose's table that a migration was applied.
func record(t *testing.T, conn *pgx.Conn, number int64) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), `
create table if not exists schema_migrations (
  id         int       generated by default as identity primary key,
  version_id bigint    not null,
  is_applied boolean   not null,
  tstamp     timestamp not null default now()
)`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `insert into schema_migrations (version_id, is_applied) values ($1, true)`, number); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func wantPending(t *testing.T, conn *pgx.Conn, want bool) {
	t.Helper()
	if got, err := version.Pending(t.Context(), conn); err != nil || got != want {
		t.Errorf("pending: %v, %v, want %v", got, err, want)
	}
}

func wantEachOnce(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	rows, err := conn.Query(t.Context(), `select version_id from schema_migrations where version_id > 0 order by version_id`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	var want []int64
	for _, m := range migrations.All() {
		want = append(want, m.Version)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
}
