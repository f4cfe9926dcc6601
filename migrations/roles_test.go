package migrations_test

import (
	"context"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/migrations"
)

// TestRoles has a server of its own, since roles are the server's.
func TestRoles(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	server := testdb.Server(t, local.Options{InMemory: true})
	admin := connect(t, server.URL("postgres"))
	run := func(conn *pgx.Conn, statements ...string) {
		t.Helper()
		for _, sql := range statements {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	roles := func() []string {
		return testdb.All[string](t, admin, `select rolname::text from pg_roles where rolname in ('payonce_api', 'payonce_worker') order by 1`)
	}

	run(admin,
		"create role humble login",
		"create role maker login createrole",
		"create database of_humble owner humble",
		"create database of_maker owner maker")

	// For a user who may not create the roles, the error says what to do, and nothing is left behind.
	err := migrations.Up(t.Context(), user(t, server.URL("of_humble"), "humble"))
	if err == nil || !strings.Contains(err.Error(), `the role payonce_api is missing, or not granted to humble: let a superuser run "create role payonce_api; create role payonce_worker; grant payonce_api, payonce_worker to humble"`) {
		t.Fatalf("the refusal is %v", err)
	}
	if left := roles(); len(left) > 0 {
		t.Fatalf("there are the roles %v", left)
	}

	// Eight databases at once make each role once.
	var all errgroup.Group
	for i := range 8 {
		name := "db_" + strconv.Itoa(i)
		run(admin, "create database "+name)
		all.Go(func() error { return migrations.Up(t.Context(), server.URL(name)) })
	}
	testdb.Must(t, all.Wait())
	if made := roles(); len(made) != 2 {
		t.Fatalf("there are the roles %v", made)
	}

	// They are there, and still not humble's.
	if err := migrations.Up(t.Context(), user(t, server.URL("of_humble"), "humble")); err == nil || !strings.Contains(err.Error(), "not granted to humble") {
		t.Fatalf("the refusal is %v", err)
	}
	run(admin, "grant payonce_api, payonce_worker to humble")
	mayAct(t, user(t, server.URL("of_humble"), "humble"))

	// A user who may create roles creates the missing ones, and may act as them.
	for i := range 8 {
		run(admin, "drop database db_"+strconv.Itoa(i))
	}
	run(admin, "drop database of_humble", "drop role payonce_api", "drop role payonce_worker")
	mayAct(t, user(t, server.URL("of_maker"), "maker"))
}

// TestUpAfterARestoreWithoutRoles: pg_restore says so of each right, and goes on.
func TestUpAfterARestoreWithoutRoles(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"payonce_api", "payonce_worker"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			address := testdb.URL(t)
			if _, err := connect(t, address).Exec(t.Context(), "drop owned by "+role); err != nil {
				t.Fatal(err)
			}
			if err := migrations.Up(t.Context(), address); err == nil || !strings.Contains(err.Error(), "make them and restore again") {
				t.Errorf("migrated with %v", err)
			}
		})
	}
}

// TestComposeLogins: the logins of docker-compose.yml suffice for what each program does, and
// the programs accept theirs.
func TestComposeLogins(t *testing.T) {
	t.Parallel()
	server := testdb.Server(t, local.Options{InMemory: true})
	compose, err := os.ReadFile("../docker-compose.yml")
	testdb.Must(t, err)
	_, logins, found := strings.Cut(string(compose), "  logins:\n    content: |\n")
	logins, _, ended := strings.Cut(logins, "\n\n")
	if !found || !ended {
		t.Fatal("there are no logins")
	}
	admin := connect(t, server.URL("postgres"))
	for _, sql := range append([]string{"create database payonce"}, strings.Split(strings.TrimSpace(logins), ";\n")...) {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	testdb.Must(t, migrations.Up(t.Context(), user(t, server.URL("payonce"), "payonce")))
	for role, login := range map[postgres.Role]string{postgres.RoleAPI: "payonce_compose_api", postgres.RoleWorker: "payonce_compose_worker"} {
		o := postgres.Options{Role: role, RefusePrivileged: true, AllowPlaintext: true, AllowUnsafeDurability: true}
		db, err := postgres.Open(t.Context(), user(t, server.URL("payonce"), login), o)
		testdb.Must(t, err)
		db.Close()
		if _, err := postgres.Open(t.Context(), user(t, server.URL("payonce"), "payonce"), o); err == nil || !strings.Contains(err.Error(), "owns the database") {
			t.Errorf("the owner as %s: %v", role, err)
		}
	}
}

// mayAct migrates as a user who is no superuser, twice, and acts as both roles.
func mayAct(t *testing.T, address string) {
	t.Helper()
	for range 2 {
		testdb.Must(t, migrations.Up(t.Context(), address))
	}
	conn, err := pgx.Connect(t.Context(), address)
	testdb.Must(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, role := range []string{"payonce_api", "payonce_worker"} {
		if _, err := conn.Exec(t.Context(), "set role "+role); err != nil {
			t.Error(err)
		}
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
