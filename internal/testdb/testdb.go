// Package testdb gives a test a PostgreSQL database of its own.
//
// # Usage
//
//	func TestCharge(t *testing.T) {
//		db := testdb.Open(t) // a pool on a new database with every migration
//
// # Guarantees
//
//   - Nothing has to be set up: the server is that of TEST_DATABASE_URL where it is set,
//     else one that the first caller in a test process starts and that ends with the
//     process, however it ends. A test without a server fails, it is never skipped.
//   - Two tests never see the same database at the same time, whether they run in parallel
//     or in several processes. A database is dropped when its test ends.
//
// # Limits
//
// On the server of TEST_DATABASE_URL a test process that is killed leaves its databases,
// and each set of migrations a template. The server that is started has fsync off: a test
// of durability takes one from testrun.Server.
//
// The library pgtestdb clones a template too, of a server that runs already. The package needs the
// migrations, so it is no part of testrun, which their tests need.
package testdb

import (
	"context"
	_ "embed"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/migrations"
)

// keptConns is how many connections a pool may keep from one test to the next.
const keptConns = 2

// prepare makes a database restorable, so that fresh.restore() empties it.
//
//go:embed restore.sql
var prepare string

// URL returns the connection string of a fresh database with every migration. It is a
// clone of a template: migrations run once per server, not once per test.
func URL(tb testing.TB) string {
	tb.Helper()
	s := start(tb)
	template, err := s.migrated()
	Must(tb, err)
	return database(tb, s, template)
}

// Empty returns the connection string of a fresh database without migrations.
func Empty(tb testing.TB) string {
	tb.Helper()
	return database(tb, start(tb), "template1")
}

// Open returns a pool on a fresh database with every migration. It is closed when the test
// ends, before its database is dropped. It accepts a server that may lose commits and one
// without TLS, lets a statement take a minute, and a transaction rest: a busy machine fills
// tables slowly, and comes back late to a lock that a test holds.
func Open(tb testing.TB) *postgres.DB {
	tb.Helper()
	return Connect(tb, URL(tb))
}

// Connect returns a pool as Open does, on the database of a connection string.
func Connect(tb testing.TB, url string) *postgres.DB {
	tb.Helper()
	return OpenAt(tb, url, options(tb.Name()))
}

// OpenAt returns a pool with these options on the database of a connection string. It accepts a
// server that may lose commits and one without TLS, and is closed when the test ends.
func OpenAt(tb testing.TB, url string, o postgres.Options) *postgres.DB {
	tb.Helper()
	o.AllowPlaintext, o.AllowUnsafeDurability = true, true
	db, err := postgres.Open(tb.Context(), url, o)
	Must(tb, err)
	tb.Cleanup(db.Close)
	return db
}

// Reused returns a pool on a database with every migration and the rows that the
// migrations insert, as Open does. Unlike Open, it may return a database that an earlier
// test of the process used: to empty one costs a tenth of making one.
//
// A test may do to it whatever it may do to a fresh database. When the test ends, sessions
// that still work are ended, and a database whose schema has changed is dropped. A test
// must not close the pool.
func Reused(tb testing.TB) *postgres.DB {
	tb.Helper()
	s := start(tb)
	db := s.takeIdle()
	if db == nil {
		var err error
		db, err = s.open(tb.Context(), "tests")
		Must(tb, err)
		Exec(tb, db.Pool(), prepare)
	}
	atEnd(tb, func(ctx context.Context) error { return s.giveBack(ctx, db) })
	return db
}

// Migrated makes a database with every migration on a server, and returns its connection
// string.
func Migrated(tb testing.TB, s *local.Server, name string) string {
	tb.Helper()
	Exec(tb, Session(tb, s.URL("postgres")), "create database "+name)
	Must(tb, migrations.Up(tb.Context(), s.URL(name)))
	return s.URL(name)
}

// As returns a pool on the database of another one, with the same settings, whose sessions
// act as a role: what is not granted to it is refused, as it is to a program. It is closed
// when the test ends.
func As(tb testing.TB, db *postgres.DB, role postgres.Role) *postgres.DB {
	tb.Helper()
	config := db.Pool().Config()
	o := options(config.ConnConfig.RuntimeParams["application_name"])
	o.Role, o.MaxConns, o.Settings = role, config.MaxConns, config.ConnConfig.RuntimeParams
	return OpenAt(tb, config.ConnString(), o)
}

// Example returns a pool on a fresh database with every migration, for a package example,
// which has no testing.TB; end closes the pool and drops the database. Both panic where
// there is no server.
func Example() (db *postgres.DB, end func()) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	s, err := shared()
	must(err)
	db, err = s.open(context.Background(), "example")
	must(err)
	return db, func() { must(s.discard(context.Background(), db)) }
}

func options(application string) postgres.Options {
	return postgres.Options{
		Application:           application,
		StatementTimeout:      time.Minute,
		CommitTimeout:         time.Minute,
		AllowPlaintext:        true,
		AllowUnsafeDurability: true,
		Settings:              map[string]string{"idle_in_transaction_session_timeout": "0"},
	}
}

// start returns the server that the tests of this process share.
func start(tb testing.TB) *server {
	tb.Helper()
	s, err := shared()
	Must(tb, err)
	return s
}

// database clones a template for the length of a test.
func database(tb testing.TB, s *server, template string) string {
	tb.Helper()
	name, err := s.create(tb.Context(), template)
	Must(tb, err)
	atEnd(tb, func(ctx context.Context) error { return s.drop(ctx, name) })
	return s.url(name)
}

// atEnd calls end when a test ends, whose context is canceled by then.
func atEnd(tb testing.TB, end func(context.Context) error) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := end(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	})
}
