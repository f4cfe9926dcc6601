// Package pgtest gives a test a PostgreSQL database of its own.
//
// The server is that of TEST_DATABASE_URL where it is set, else one that the
// first caller in a test process starts and that ends with the process, however
// it ends. Nothing has to be set up, and no TestMain: a test calls URL, Empty or
// Open and fails, never skips, where there is no server.
//
// It promises that no two tests see the same database, whether they run in
// parallel or in several processes, and that each is dropped when its test ends.
// A test process that is killed leaves its databases behind on the server of
// TEST_DATABASE_URL; so does every set of migrations leave its template.
//
// The server it starts has fsync off: a test of durability starts its own with
// package local.
package pgtest

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
)

// patience bounds what is done for one test.
const patience = await.Stall

// URL returns the connection string of a fresh database with every migration,
// which is dropped when the test ends. It is a clone of a template: migrations
// run once per server, not once per test.
func URL(tb testing.TB) string {
	tb.Helper()
	template, err := template()
	if err != nil {
		tb.Fatal(err)
	}
	return database(tb, template)
}

// Empty returns the connection string of a fresh database without migrations,
// which is dropped when the test ends.
func Empty(tb testing.TB) string {
	tb.Helper()
	return database(tb, "template1")
}

// Open returns a pool on a fresh database with every migration. It is closed when
// the test ends, before its database is dropped. It accepts a server that may
// lose commits and one without TLS, and lets a statement take a minute: a busy
// machine fills tables slowly.
func Open(tb testing.TB) *postgres.DB {
	tb.Helper()
	db, err := postgres.Open(tb.Context(), URL(tb), postgres.Options{
		Application:           tb.Name(),
		StatementTimeout:      time.Minute,
		AllowPlaintext:        true,
		AllowUnsafeDurability: true,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(db.Close)
	return db
}

// As returns a pool on the database of another one, with the same settings, whose
// sessions act as a role: what is not granted to it is refused, as it is to a
// program. It is closed when the test ends, or kept for the next test that gets
// the database from Reused.
func As(tb testing.TB, db *postgres.DB, role postgres.Role) *postgres.DB {
	tb.Helper()
	acting, err := used.as(tb.Context(), db, role)
	if err != nil {
		tb.Fatal(err)
	}
	if acting != nil {
		return acting
	}
	if acting, err = openAs(tb.Context(), db, role); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(acting.Close)
	return acting
}

func openAs(ctx context.Context, db *postgres.DB, role postgres.Role) (*postgres.DB, error) {
	config := db.Pool().Config()
	return postgres.Open(ctx, config.ConnString(), postgres.Options{
		Application:           config.ConnConfig.RuntimeParams["application_name"],
		Role:                  role,
		StatementTimeout:      time.Minute,
		MaxConns:              config.MaxConns,
		Settings:              config.ConnConfig.RuntimeParams,
		AllowPlaintext:        true,
		AllowUnsafeDurability: true,
	})
}

// database clones a template for the length of a test.
func database(tb testing.TB, template string) string {
	tb.Helper()
	s, err := shared()
	if err != nil {
		tb.Fatal(err)
	}
	name := "payonce_test_" + strings.ToLower(rand.Text())
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	if err := s.clone(ctx, name, template); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer cancel()
		if err := s.drop(ctx, name); err != nil {
			tb.Error(err)
		}
	})
	return s.url(name)
}
