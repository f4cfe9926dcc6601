package migrations_test

import (
	"cmp"
	"context"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/migrations"
)

// refused is PostgreSQL's code for a missing right, and for a row that no policy permits.
const refused = "42501"

// TestRights_areAsDecided compares every right and policy with testdata/rights.txt, in both
// directions: a new table needs a decision, if only that the programs get nothing.
func TestRights_areAsDecided(t *testing.T) {
	t.Parallel()
	var decided []string
	for line := range strings.Lines(read(t, "rights.txt")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			decided = append(decided, line)
		}
	}
	found := testdb.All[string](t, testdb.Reused(t), read(t, "rights.sql"))
	slices.Sort(decided)
	slices.Sort(found)
	testrun.Same(t, "rights", decided, found)
}

// TestTenancy acts as the api on every table with merchants, for one of two merchants and
// for none: it reads that merchant's rows alone. What it adds is
// TestHostileAPI_insertsWhatARequestCauses.
func TestTenancy(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	api := testdb.As(t, db, postgres.RoleAPI)
	testdb.Exec(t, db.Pool(), strings.NewReplacer("$first", "1", "$last", "3").Replace(read(t, "rows.sql")), pgx.QueryExecModeSimpleProtocol)
	testdb.Exec(t, db.Pool(), `insert into held_orders values ('m0', '17', 'ch_2'), ('m1', '17', 'ch_1')`)
	tables := testdb.All[string](t, db, `
select relname::text
  from pg_class
 where relnamespace = 'public'::regnamespace
   and relrowsecurity
   and has_any_column_privilege('payonce_api', oid, 'select')`)
	for _, table := range tables {
		owner := map[bool]string{true: "scope", false: "merchant_id"}[table == "idempotency_keys"]
		for _, merchant := range []string{"m1", "m0", "", "initech", "m1' or true --", "m1 ", "M1", "%"} {
			own := testdb.All[string](t, db, "select '' from "+table+" where "+owner+" = $1", merchant)
			if rows := testdb.All[string](t, api.Tenant(merchant), "select '' from "+table); len(rows) != len(own) || merchant == "m1" && len(own) == 0 {
				t.Errorf("%q reads %d rows of %s, and has %d", merchant, len(rows), table, len(own))
			}
		}
		if rows := testdb.All[string](t, api, "select '' from "+table); len(rows) != 0 {
			t.Errorf("without a merchant there are %d rows of %s", len(rows), table)
		}
	}
}

// TestRoles_cannotAvoidGrantsAndPolicies tries the ways around grants and policies that PostgreSQL has.
// What it leaves to every user are temporary tables and large objects.
func TestRoles_cannotAvoidGrantsAndPolicies(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, role := range []postgres.Role{postgres.RoleAPI, postgres.RoleWorker, postgres.RoleConsole} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			conn, err := testdb.As(t, db, role).Pool().Acquire(t.Context())
			testdb.Must(t, err)
			defer conn.Release()
			// A read that policies would filter is now refused.
			testdb.Exec(t, conn, `set row_security = off`)
			for statement := range strings.Lines(read(t, "refused.sql")) {
				if statement = strings.TrimSpace(statement); strings.HasPrefix(statement, "--") {
					continue
				}
				if _, err := conn.Exec(t.Context(), strings.ReplaceAll(statement, "$role", string(role))); testdb.Code(err) != refused {
					t.Errorf("%s: %v, want %s", statement, err, refused)
				}
			}
		})
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", file))
	testdb.Must(t, err)
	return string(content)
}

// TestRoles has a server of its own, since roles are the server's.
func TestRoles(t *testing.T) {
	testrun.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	server := testrun.Server(t, local.Options{InMemory: true})
	admin := testdb.Session(t, server.URL("postgres"))
	run := func(statements ...string) {
		t.Helper()
		for _, sql := range statements {
			testdb.Exec(t, admin, sql)
		}
	}
	roles := func() []string {
		return testdb.All[string](t, admin, `select rolname::text from pg_roles where rolname in ('payonce_api', 'payonce_worker', 'payonce_console') order by 1`)
	}

	run("create role humble login",
		"create role maker login createrole",
		"create database of_humble owner humble",
		"create database of_maker owner maker")

	// For a user who may not create the roles, the error says what to do, and nothing is left behind.
	err := migrations.Up(t.Context(), user(t, server.URL("of_humble"), "humble"))
	if err == nil || !strings.Contains(err.Error(), `the role payonce_api is missing, or not granted to humble: let a superuser run "create role payonce_api; create role payonce_worker; create role payonce_console; grant payonce_api, payonce_worker, payonce_console to humble"`) {
		t.Fatalf("the refusal is %v", err)
	}
	if left := roles(); len(left) > 0 {
		t.Fatalf("there are the roles %v", left)
	}

	// Eight databases at once make each role once.
	var all errgroup.Group
	for i := range 8 {
		name := "db_" + strconv.Itoa(i)
		run("create database " + name)
		all.Go(func() error { return migrations.Up(t.Context(), server.URL(name)) })
	}
	testdb.Must(t, all.Wait())
	if made := roles(); len(made) != 3 {
		t.Fatalf("there are the roles %v", made)
	}

	// They are there, and still not humble's.
	if err := migrations.Up(t.Context(), user(t, server.URL("of_humble"), "humble")); err == nil || !strings.Contains(err.Error(), "not granted to humble") {
		t.Fatalf("the refusal is %v", err)
	}
	run("grant payonce_api, payonce_worker, payonce_console to humble")
	mayAct(t, user(t, server.URL("of_humble"), "humble"))

	// A user who may create roles creates the missing ones, and may act as them.
	for i := range 8 {
		run("drop database db_" + strconv.Itoa(i))
	}
	run("drop database of_humble", "drop role payonce_api", "drop role payonce_worker", "drop role payonce_console")
	mayAct(t, user(t, server.URL("of_maker"), "maker"))
}

// TestUpAfterARestoreWithoutRoles: pg_restore says so of each right, and goes on.
func TestUpAfterARestoreWithoutRoles(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"payonce_api", "payonce_worker", "payonce_console"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			address := testdb.URL(t)
			testdb.Exec(t, testdb.Session(t, address), "drop owned by "+role)
			if err := migrations.Up(t.Context(), address); err == nil || !strings.Contains(err.Error(), "make them and restore again") {
				t.Errorf("migrated with %v", err)
			}
		})
	}
}

// composeServer is a migrated server with the logins of docker-compose.yml.
func composeServer(t *testing.T) (server *local.Server, admin *pgx.Conn) {
	t.Helper()
	server = testrun.Server(t, local.Options{InMemory: true})
	compose, err := os.ReadFile("../docker-compose.yml")
	testdb.Must(t, err)
	_, logins, _ := strings.Cut(string(compose), "  logins:\n    content: |\n")
	logins, _, _ = strings.Cut(logins, "\n\n")
	admin = testdb.Session(t, server.URL("postgres"))
	for _, sql := range append([]string{"create database payonce"}, strings.Split(strings.TrimSpace(logins), ";\n")...) {
		testdb.Exec(t, admin, sql)
	}
	testdb.Must(t, migrations.Up(t.Context(), user(t, server.URL("payonce"), "payonce")))
	return server, admin
}

// loginsSuffice: the logins of docker-compose.yml suffice for what each program does, and
// the programs accept theirs. The api cannot take all connections of the server.
func loginsSuffice(t *testing.T, server *local.Server, admin *pgx.Conn) {
	t.Helper()
	for role, login := range map[postgres.Role]string{postgres.RoleAPI: "payonce_compose_api", postgres.RoleWorker: "payonce_compose_worker", postgres.RoleConsole: "payonce_compose_console"} {
		o := postgres.Options{Role: role, RefusePrivileged: true, AllowPlaintext: true, AllowUnsafeDurability: true}
		db, err := postgres.Open(t.Context(), user(t, server.URL("payonce"), login), o)
		testdb.Must(t, err)
		db.Close()
		if _, err := postgres.Open(t.Context(), user(t, server.URL("payonce"), "payonce"), o); err == nil || !strings.Contains(err.Error(), "owns the database") {
			t.Errorf("the owner as %s: %v", role, err)
		}
	}
	limit := testdb.One[int](t, admin, `select rolconnlimit from pg_roles where rolname = 'payonce_compose_api'`)
	if limit < 1 || limit > 100 { // of the 200 of docker-compose.yml
		t.Errorf("the api may have %d connections", limit)
	}
}

// TestHostileAPI_holdsUpOthersForABoundedTime: the worker ends the sessions of an attacker who
// has the api's password, whatever the session says of itself, and no others.
func TestHostileAPI_holdsUpOthersForABoundedTime(t *testing.T) {
	testrun.Long(t, "it waits for locks")
	t.Parallel()
	server, admin := composeServer(t)
	loginsSuffice(t, server, admin)
	const api = "payonce_compose_api"
	session := func(login, database string, statements ...string) *pgx.Conn {
		conn := testdb.Session(t, user(t, server.URL(database), login))
		for _, sql := range statements {
			testdb.Exec(t, conn, sql)
		}
		return conn
	}
	worker := session("payonce_compose_worker", "payonce")
	end := func(held time.Duration) int {
		n, err := postgres.EndStuck(t.Context(), worker, "payonce-", time.Hour, held)
		testdb.Must(t, err)
		return n
	}
	// An own transaction number, which the followers of the ledger stay below.
	const write = `select pg_current_xact_id()`
	spared := []*pgx.Conn{
		session(api, "payonce", `select 1`),
		session(api, "postgres", `begin`, `select 1`),
		session("payonce_compose_worker", "payonce", `begin`, write, `select pg_advisory_lock(2)`),
		session("payonce", "payonce", `set role payonce_api`, `begin`, write),
		session("postgres", "payonce", `set role payonce_api`, `begin`, write),
	}
	for name, c := range map[string]struct {
		database   string
		statements []string
		held       time.Duration // after which it is ended
		login      string        // the api's where empty
	}{
		"a transaction that writes":               {"payonce", []string{`begin`, write}, 0, ""},
		"one that writes beside our database":     {"postgres", []string{`begin`, write}, 0, ""},
		"one under another role and without name": {"payonce", []string{`set role payonce_api`, `set application_name = ''`, `begin`, write}, 0, ""},
		"a snapshot":                {"payonce", []string{`begin isolation level repeatable read`, `select from ledger_events`}, 0, ""},
		"a snapshot of the console": {"payonce", []string{`begin isolation level repeatable read`, `select from outbox`}, 0, "payonce_compose_console"},
		"a lock of a table":         {"payonce", []string{`begin`, `lock table ledger_events in access share mode`}, 0, ""},
		"an advisory lock":          {"payonce", []string{`select pg_advisory_lock(1)`}, time.Hour, ""},
	} {
		hostile := session(cmp.Or(c.login, api), c.database, c.statements...)
		if c.held == 0 {
			if n := end(time.Hour); n != 0 {
				t.Errorf("%s: %d ended before the bound", name, n)
			}
		}
		if n := end(c.held); n != 1 {
			t.Errorf("%s: %d ended", name, n)
			continue
		}
		testrun.Row(t, admin, `select not exists (select from pg_stat_activity where pid = $1)`, hostile.PgConn().PID())
	}

	// To end a commit that waits for its standby would show what a failover loses.
	waits, standby := session(api, "postgres", `set synchronous_commit = on`), testdb.StandbyOf(t, server, "postgres")
	standby.Leaves(t)
	committed := make(chan error, 1)
	go func() {
		_, err := waits.Exec(t.Context(), `create temp view written as select 1`)
		committed <- err
	}()
	testrun.Row(t, standby, `select exists (select from pg_stat_activity where wait_event = 'SyncRep' and usename = $1)`, api)
	if n := end(0); n != 0 {
		t.Errorf("%d sessions ended that wait for a standby", n)
	}
	standby.Returns(t)
	testdb.Must(t, <-committed)
	for _, conn := range spared {
		testdb.Exec(t, conn, `select 1`)
	}
}

// mayAct migrates as a user who is no superuser, twice, and acts as all roles.
func mayAct(t *testing.T, address string) {
	t.Helper()
	for range 2 {
		testdb.Must(t, migrations.Up(t.Context(), address))
	}
	conn, err := pgx.Connect(t.Context(), address)
	testdb.Must(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, role := range []string{"payonce_api", "payonce_worker", "payonce_console"} {
		testdb.Exec(t, conn, "set role "+role)
	}
}

// user is an address with another user.
func user(t *testing.T, address, name string) string {
	t.Helper()
	u, err := url.Parse(address)
	testdb.Must(t, err)
	u.User = url.User(name)
	return u.String()
}
