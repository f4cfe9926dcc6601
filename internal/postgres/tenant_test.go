package postgres_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// things are a table with two merchants' rows, and the api's pool of one
// connection on it: what a transaction leaves behind would be met by the next.
func things(t *testing.T) *postgres.DB {
	t.Helper()
	address := testdb.URL(t)
	owner := open(t, address, postgres.Options{})
	_, err := owner.Pool().Exec(t.Context(), `
create table things (merchant_id text, id int constraint things_once unique);
alter table things enable row level security;
create policy tenant on things to payonce_api using (merchant_id = current_setting('payonce.merchant', true));
grant select, insert on things to payonce_api;
insert into things values ('acme', 1), ('acme', 2), ('globex', 3)`)
	if err != nil {
		t.Fatal(err)
	}
	return open(t, address, postgres.Options{Role: postgres.RoleAPI, MaxConns: 1})
}

const selectThings = `select id from things order by id`

func wantThings(t *testing.T, q postgres.Querier, want ...int) {
	t.Helper()
	rows, err := q.Query(t.Context(), selectThings)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("there are %v (%v), want %v", got, err, want)
	}
}

func thing(merchant string, id int) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(`insert into things values ($1, $2)`, merchant, id)
	return b
}

func TestTenant(t *testing.T) {
	t.Parallel()

	t.Run("reads the rows of its merchant alone", func(t *testing.T) {
		t.Parallel()
		db := things(t)
		wantThings(t, db.Tenant("acme"), 1, 2)
		wantThings(t, db.Tenant("globex"), 3)
		wantThings(t, db.Tenant("initech"))
		wantThings(t, db.Tenant(""))
	})

	t.Run("under settings too, and these are the reader's alone", func(t *testing.T) {
		t.Parallel()
		db := things(t)
		settings := postgres.Settings{"enable_seqscan": "off"}
		for _, s := range []postgres.Settings{settings, nil} {
			rows, err := db.Tenant("acme").QueryWith(t.Context(), s, selectThings)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := pgx.CollectRows(rows, pgx.RowTo[int]); err != nil || !slices.Equal(got, []int{1, 2}) {
				t.Errorf("there are %v, %v", got, err)
			}
		}
		if len(settings) != 1 {
			t.Errorf("the settings are %v now", settings)
		}
		wantThings(t, db)
	})

	t.Run("and the next one on the connection nothing of them", func(t *testing.T) {
		t.Parallel()
		db := things(t)
		wantThings(t, db)
		wantThings(t, db.Tenant("acme"), 1, 2)
		wantThings(t, db)
		if err := db.Tenant("acme").Commit(t.Context(), thing("acme", 4)); err != nil {
			t.Fatal(err)
		}
		wantThings(t, db)
	})

	t.Run("one row is its merchant's too", func(t *testing.T) {
		t.Parallel()
		db := things(t)
		var id int
		const last = `select id from things order by id desc limit 1`
		if err := db.Tenant("acme").QueryRow(t.Context(), last).Scan(&id); err != nil || id != 2 {
			t.Errorf("it is %d, %v", id, err)
		}
		if err := db.Tenant("initech").QueryRow(t.Context(), last).Scan(&id); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("the error is %v, want no rows", err)
		}
		if err := db.Tenant("acme").QueryRow(t.Context(), `select id from things`).Scan(&id); err != nil {
			t.Errorf("the first of several: %v", err)
		}
		var text []string
		if err := db.Tenant("acme").QueryRow(t.Context(), last).Scan(&text); err == nil {
			t.Error("a number was read as texts")
		}
		if err := db.Tenant("acme").QueryRow(t.Context(), `select 1 / 0`).Scan(&id); code(err) != "22012" {
			t.Errorf("the error is %v, want a division by zero", err)
		}
		wantThings(t, db) // each has given its connection back
	})

	t.Run("writes rows of its merchant alone, and a refusal takes the whole batch", func(t *testing.T) {
		t.Parallel()
		db := things(t)
		b := thing("acme", 5)
		b.QueuedQueries = append(b.QueuedQueries, thing("globex", 6).QueuedQueries...)
		if err := db.Tenant("acme").Commit(t.Context(), b); code(err) != "42501" || errors.Is(err, postgres.ErrUnknown) {
			t.Errorf("the error is %v, want 42501", err)
		}
		wantThings(t, db.Tenant("acme"), 1, 2)
		wantThings(t, db.Tenant("globex"), 3)
		if err := db.Commit(t.Context(), thing("acme", 7)); code(err) != "42501" {
			t.Errorf("without a merchant the error is %v, want 42501", err)
		}
	})

	t.Run("names the constraint that refuses, also where the other row is another merchant's", func(t *testing.T) {
		t.Parallel()
		db := things(t)
		for _, id := range []int{1, 3} {
			if err := db.Tenant("acme").Commit(t.Context(), thing("acme", id)); postgres.Constraint(err) != "things_once" {
				t.Errorf("refused by %q (%v), want things_once", postgres.Constraint(err), err)
			}
		}
	})

	t.Run("commits nothing where nothing was queued", func(t *testing.T) {
		t.Parallel()
		if err := things(t).Tenant("acme").Commit(t.Context(), &pgx.Batch{}); err == nil {
			t.Error("it passed")
		}
	})

	t.Run("a snapshot is its merchant's, does not move and does not write", func(t *testing.T) {
		t.Parallel()
		db := things(t)
		tx, err := db.Tenant("acme").Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantThings(t, tx, 1, 2)
		if _, err := tx.Exec(t.Context(), `insert into things values ('acme', 9)`); code(err) != "25006" {
			t.Errorf("a write ends with %v, want 25006", err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		wantThings(t, db)
	})
}

func code(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	return pg.Code
}

// TestReadAsTenants: in one round trip, and nobody sees what is another's.
func TestReadAsTenants(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := things(t)
	read := func(sql string, tenants []string, args ...[]any) (map[string][]int, error) {
		got := map[string][]int{}
		var reads []postgres.Read
		for i, tenant := range tenants {
			args = append(args, nil)
			reads = append(reads, postgres.As(tenant), postgres.Read{SQL: sql, Args: args[i], Rows: func(rows pgx.Rows) (err error) {
				got[tenant], err = pgx.CollectRows(rows, pgx.RowTo[int])
				return err
			}})
		}
		return got, db.Read(t.Context(), reads...)
	}
	tenants := []string{"acme", "initech", "globex", ""}
	got, err := read(selectThings, tenants)
	if want := "map[:[] acme:[1 2] globex:[3] initech:[]]"; fmt.Sprint(got) != want || err != nil {
		t.Errorf("there are %v (%v), want %s", got, err, want)
	}
	const one = `select id from things where id = any($1)`
	got, err = read(one, []string{"globex", "acme"}, []any{[]int{1, 2}}, []any{[]int{2, 3}})
	if want := "map[acme:[2] globex:[]]"; fmt.Sprint(got) != want || err != nil {
		t.Errorf("there are %v (%v), want %s", got, err, want)
	}
	if _, err := read(`select 1 / (id - 3) from things`, []string{"acme", "globex", "acme"}); code(err) != "22012" {
		t.Errorf("the error is %v, want a division by zero", err)
	}
	planted := errors.New("planted")
	fails := postgres.Read{SQL: selectThings, Rows: func(pgx.Rows) error { return planted }}
	if err := db.Read(t.Context(), postgres.As("acme"), fails, fails); !errors.Is(err, planted) {
		t.Errorf("the error is %v, want that of the reader", err)
	}
	wantThings(t, db) // it is given back, and names nobody
}
