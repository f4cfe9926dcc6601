package postgres_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
)

func TestOpen_refusesAStandby(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it starts two servers")
	primary, err := local.Start(t.Context(), local.Options{InMemory: true})
	testdb.Must(t, err)
	t.Cleanup(func() { mustClose(t, primary) })
	standby, err := primary.Standby(t.Context())
	testdb.Must(t, err)
	t.Cleanup(func() { mustClose(t, standby) })
	o := postgres.Options{AllowUnsafeDurability: true}

	db, err := postgres.Open(t.Context(), standby.URL("postgres"), o)
	if !errors.Is(err, postgres.ErrReadOnly) || !errors.Is(err, postgres.ErrUnreachable) {
		t.Errorf("opened: %v, error %v, want ErrReadOnly, which is ErrUnreachable: it may be promoted", db != nil, err)
	}
	o.AllowReadOnly = true
	db, err = postgres.Open(t.Context(), standby.URL("postgres"), o)
	if err != nil {
		t.Fatalf("a program that only reads is refused: %v", err)
	}
	db.Close()
}

func mustClose(t *testing.T, s *local.Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestCommit_closesASessionThatRefusesWrites(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 1})
	testdb.Exec(t, db.Pool(), `set default_transaction_read_only = on`)
	insert := func() error {
		b := &pgx.Batch{}
		b.Queue(`insert into merchants (merchant_id) values ('acme')`)
		return db.Commit(t.Context(), b)
	}
	if err := insert(); err == nil {
		t.Fatal("the session takes writes: this shows nothing")
	}
	if err := insert(); err != nil {
		t.Errorf("the pool's only session still refuses writes: %v", err)
	}
}
