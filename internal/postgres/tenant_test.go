package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// things are a table with two merchants' rows, and the api's pool of one
// connection on it: what a transaction leaves behind would be met by the next.
func things(t *testing.T) *postgres.DB {
	t.Helper()
	address := testdb.URL(t)
	owner := testdb.OpenAt(t, address, postgres.Options{})
	testdb.Exec(t, owner.Pool(), `
create table things (merchant_id text, id int constraint things_once unique);
alter table things enable row level security;
create policy tenant on things to payonce_api using (merchant_id = current_setting('payonce.merchant', true));
grant select, insert on things to payonce_api;
insert into things values ('acme', 1), ('acme', 2), ('globex', 3)`)
	return testdb.OpenAt(t, address, postgres.Options{Role: postgres.RoleAPI, MaxConns: 1})
}

const selectThings = `select id from things order by id`

func wantThings(t *testing.T, q postgres.Querier, want ...int) {
	t.Helper()
	got, err := collect[int](q.Query(t.Context(), selectThings))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("there are %v (%v), want %v", got, err, want)
	}
}

func thing(merchant string, id int) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(`insert into things values ($1, $2)`, merchant, id)
	return b
}

// One round trip reads as several merchants, and each sees its own rows.
func TestRead_asTenants(t *testing.T) {
	t.Parallel()
	db := things(t)
	wantThings(t, db)
	wantThings(t, db.Tenant("acme"), 1, 2)
	wantThings(t, db.Tenant("initech"))
	read := func(sql string, tenants ...string) (got map[string][]int, err error) {
		got, b := map[string][]int{}, &pgx.Batch{}
		for _, tenant := range tenants {
			postgres.QueueTenant(b, tenant)
			b.Queue(sql).Query(func(rows pgx.Rows) (err error) {
				got[tenant], err = pgx.CollectRows(rows, pgx.RowTo[int])
				return err
			})
		}
		return got, db.Read(t.Context(), b)
	}
	got, err := read(selectThings, "acme", "initech", "globex", "")
	if want := "map[:[] acme:[1 2] globex:[3] initech:[]]"; fmt.Sprint(got) != want || err != nil {
		t.Errorf("there are %v (%v), want %s", got, err, want)
	}
	alone, ids := &pgx.Batch{}, []int(nil)
	alone.Queue(selectThings).Query(func(rows pgx.Rows) (err error) {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	})
	if err := db.Tenant("globex").Read(t.Context(), alone); err != nil || !slices.Equal(ids, []int{3}) {
		t.Errorf("a tenant's batch reads %v, %v", ids, err)
	}
	if _, err := read(`select 1 / (id - 3) from things`, "acme", "globex", "acme"); testdb.Code(err) != "22012" {
		t.Errorf("the error is %v, want a division by zero", err)
	}
	planted, b := errors.New("planted"), &pgx.Batch{}
	postgres.QueueTenant(b, "acme")
	b.Queue(selectThings).Query(func(pgx.Rows) error { return planted })
	if err := db.Read(t.Context(), b); !errors.Is(err, planted) {
		t.Errorf("the error is %v, want that of the reader", err)
	}
	wantThings(t, db) // the connection is released, and names no merchant
}

// TestTenant_endsWithItsTransaction: however the transaction ends, the next one on the
// connection has no merchant's name.
func TestTenant_endsWithItsTransaction(t *testing.T) {
	t.Parallel()
	db := things(t)
	acme := db.Tenant("acme")
	refused := thing("acme", 8)
	refused.Queue(`select nothing_like_this`)
	for name, end := range map[string]func(context.Context) error{
		"a read that fails among its rows": func(ctx context.Context) error {
			_, err := collect[int](acme.Query(ctx, `select 1 / (2 - id) from things order by id`))
			return err
		},
		"a commit that is refused":         func(ctx context.Context) error { return acme.Commit(ctx, thing("globex", 8)) },
		"a commit that cannot be prepared": func(ctx context.Context) error { return acme.Commit(ctx, refused) },
		"a client that goes away during a read": func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			_, err := collect[any](acme.Query(ctx, `select pg_sleep(20)`))
			return err
		},
	} {
		if err := end(t.Context()); err == nil {
			t.Errorf("%s: it did not end so", name)
		}
		wantThings(t, db)
		wantThings(t, acme, 1, 2)
		wantThings(t, db.Tenant("globex"), 3)
	}
	rows, err := acme.Query(t.Context(), `select generate_series(1, 100000)`)
	testdb.Must(t, err)
	rows.Next() // and the others are left
	rows.Close()
	wantThings(t, db)
}
