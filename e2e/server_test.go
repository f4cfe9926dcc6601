package e2e_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
)

// server is a PostgreSQL server, by the URL of one of its databases.
type server struct{ at *url.URL }

// databasePassword is in every URL that has none. A server of our own trusts
// everybody and never asks for it; it is there to be found where it must not be.
const databasePassword = "s3cret-of-the-database"

func newServer(at string) (server, error) {
	u, err := url.Parse(at)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return server{}, errors.New("TEST_DATABASE_URL is no address of the form postgres://user@host/database")
	}
	if u.User == nil {
		u.User = url.User("postgres")
	}
	if _, set := u.User.Password(); !set {
		u.User = url.UserPassword(u.User.Username(), databasePassword)
	}
	return server{u}, nil
}

// ownServer starts a server for one test.
func ownServer(t *testing.T, o local.Options) (*local.Server, server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	o.InMemory = true
	started, err := local.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := started.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := newServer(started.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	return started, s
}

func sharedServer(t *testing.T) server {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// database makes an empty database for one test and returns its URL.
func (s server) database(t *testing.T, name string) string {
	t.Helper()
	name = "payonce_e2e_" + name + "_" + unique()
	s.command(t, "create database "+pgx.Identifier{name}.Sanitize())
	t.Cleanup(func() { s.command(t, "drop database "+pgx.Identifier{name}.Sanitize()+" with (force)") })
	u := *s.at
	u.Path, u.RawPath = "/"+name, ""
	return u.String()
}

// command runs a statement that takes no transaction.
func (s server) command(t *testing.T, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startPatience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
