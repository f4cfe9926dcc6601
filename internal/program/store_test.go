package program_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func options() postgres.Options {
	return postgres.Options{Application: "test", AllowPlaintext: true, AllowUnsafeDurability: true}
}

// openLate opens a database that is not there yet, and returns when that is logged.
func openLate(t *testing.T, ctx context.Context, address string) (*testrun.Log, <-chan error) { //nolint:revive // t comes first in these tests
	t.Helper()
	log, lines := logger()
	opened := make(chan error, 1)
	go func() {
		db, err := program.Open(ctx, log, address, options())
		if err == nil {
			db.Close()
		}
		opened <- err
	}()
	lines.Field(t, "waiting for the database", "error")
	return lines, opened
}

func TestOpen(t *testing.T) {
	t.Parallel()
	t.Run("a database that is not there yet is waited for", func(t *testing.T) {
		t.Parallel()
		other, address := testdb.Session(t, testdb.Empty(t)), testdb.URL(t)
		parsed, err := pgx.ParseConfig(address)
		testdb.Must(t, err)
		name := pgx.Identifier{parsed.Database}.Sanitize()
		testdb.Exec(t, other, "alter database "+name+" with allow_connections false")
		_, opened := openLate(t, t.Context(), address)
		testdb.Exec(t, other, "alter database "+name+" with allow_connections true")
		testdb.Must(t, <-opened)
	})
	t.Run("waiting ends with the program, and its log holds no password", func(t *testing.T) {
		t.Parallel()
		ctx, stop := context.WithCancel(t.Context())
		lines, opened := openLate(t, ctx, "postgres://payonce:hunter2@127.0.0.1:1/payonce?sslmode=disable")
		stop()
		if err := <-opened; !errors.Is(err, context.Canceled) {
			t.Errorf("Open: %v", err)
		}
		if strings.Contains(lines.String(), "hunter2") {
			t.Errorf("the password is logged: %s", lines)
		}
	})
}
