package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestOpenAsARole(t *testing.T) {
	testrun.Long(t, "it opens many pools")
	t.Parallel()
	address := testdb.URL(t)
	o := postgres.Options{Role: "payonce_nobody", AllowPlaintext: true, AllowUnsafeDurability: true}
	wantOpened(t, t.Context(), address, o, "the database has no role payonce_nobody: run payonce migrate")
	o.Role = postgres.RoleAPI
	unrelated := login(t, address, "")
	wantOpened(t, t.Context(), as(t, address, unrelated), o,
		`the database's user "`+unrelated+`" may not act as payonce_api: as a superuser run: grant payonce_api to "`+unrelated+`"`)

	// A user that may do more than the role is refused where that is asked for.
	owner := login(t, address, "")
	testdb.Exec(t, testdb.Session(t, address), `grant create on schema public to `+owner+`; set role `+owner+`; create table own ()`)
	for rest, says := range map[string]string{
		"superuser in role payonce_api":           "is a superuser: ",
		"bypassrls in role payonce_api":           "has BYPASSRLS: ",
		"createrole in role payonce_api":          "has CREATEROLE: ",
		"in role payonce_api, payonce_worker":     "may act as payonce_worker, which is another program's: ",
		"in role payonce_api, " + owner:           "may act as " + owner + ", which owns tables: ",
		"noinherit in role payonce_api, " + owner: "may act as " + owner + ", which owns tables: ",
	} {
		user := login(t, address, rest)
		o.RefusePrivileged = false
		want(t, testdb.OpenAt(t, as(t, address, user), o), `select current_user::text`, "payonce_api")
		o.RefusePrivileged = true
		wantOpened(t, t.Context(), as(t, address, user), o, `the database's user "`+user+`" `+says)
	}
}

// login makes a user of the server and returns its name; rest is what it may.
func login(t *testing.T, address, rest string) string {
	t.Helper()
	db := testdb.OpenAt(t, address, postgres.Options{})
	name := testdb.All[string](t, db, `select 'payonce_login_' || replace(gen_random_uuid()::text, '-', '')`)[0]
	quoted := pgx.Identifier{name}.Sanitize()
	testdb.Exec(t, db.Pool(), "create role "+quoted+" login password '"+name+"' "+rest)
	t.Cleanup(func() {
		for _, sql := range []string{"drop owned by ", "drop role "} {
			if _, err := db.Pool().Exec(context.WithoutCancel(t.Context()), sql+quoted); err != nil {
				t.Error(err)
			}
		}
	})
	return name
}

// as is an address with another user.
func as(t *testing.T, address, user string) string {
	t.Helper()
	_, rest, found := strings.Cut(address, "@")
	if !found {
		t.Fatalf("%s names no user", address)
	}
	return "postgres://" + user + ":" + user + "@" + rest
}

// stopMidway sends the beginning of a batch, as a program does that is stopped
// while it sends one, and returns when the server waits for the rest.
func stopMidway(t *testing.T, db *postgres.DB, address, name string) {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	testdb.Must(t, err)
	config.RuntimeParams["application_name"] = name
	conn, err := pgx.ConnectConfig(t.Context(), config)
	testdb.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	f := conn.PgConn().Frontend()
	f.Send(&pgproto3.Parse{Query: "insert into effects (id, twin) values (1, 1)"})
	f.Send(&pgproto3.Bind{})
	f.Send(&pgproto3.Execute{})
	f.Send(&pgproto3.Flush{})
	testdb.Must(t, f.Flush())
	const waits = `
select count(*) = 1
  from pg_stat_activity
 where datname = current_database()
   and application_name = $1
   and state = 'active'
   and wait_event = 'ClientRead'
   and backend_xid is not null`
	testrun.Row(t, db, waits, name)
}

func TestEndStuck_endsTheSessionsOfStoppedPrograms(t *testing.T) {
	testrun.Long(t, "it takes a large part of the time")
	t.Parallel()
	db, address := effects(t, postgres.Options{Application: "payonce-test", LockTimeout: 50 * time.Millisecond})
	worker := testdb.OpenAt(t, address, postgres.Options{Role: postgres.RoleWorker})
	stopMidway(t, db, address, "payonce-api")
	if err := db.Commit(t.Context(), effect(1)); groupcommit.OutcomeOf(err) != groupcommit.Locked {
		t.Errorf("beside a half-sent batch a commit ends with %v", err)
	}
	for prefix, patience := range map[string]time.Duration{"payonce-": postgres.HalfSent, "other-": 0} {
		if n, err := postgres.EndStuck(t.Context(), worker, prefix, patience, time.Hour); n != 0 || err != nil {
			t.Errorf("%d sessions of %s ended after %s, %v", n, prefix, patience, err)
		}
	}
	if n, err := postgres.EndStuck(t.Context(), worker, "payonce-", 0, time.Hour); n != 1 || err != nil {
		t.Fatalf("%d ended, %v", n, err)
	}
	testrun.True(t, "a commit succeeds", func() bool { return db.Commit(t.Context(), effect(1)) == nil })
	want(t, db, `select count(*) from effects`, 1)
}

// things are a table with two merchants' rows, and the api's pool of one
// connection on it: what a transaction leaves behind would be met by the next.
func things(t *testing.T) *postgres.DB {
	t.Helper()
	testrun.Long(t, "it needs a database")
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
