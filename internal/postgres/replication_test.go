package postgres_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestCommit_closesASessionThatRefusesWrites(t *testing.T) {
	testrun.Long(t, "it takes a large part of the time")
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

// slowlyClosed calls closing in Close.
type slowlyClosed struct {
	net.Conn

	closing func()
}

func (c slowlyClosed) Close() error {
	c.closing()
	return c.Conn.Close()
}

// With TLS, to close a session of a server that hangs may wait.
func TestServers_takeANewPrimaryWhileSessionsOfTheOldOneAreClosed(t *testing.T) {
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{})
	config, closing, end := db.Probe(), make(chan struct{}, 9), make(chan struct{})
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return slowlyClosed{conn, func() { closing <- struct{}{}; <-end }}, err
	}
	old, err := pgxpool.NewWithConfig(t.Context(), config)
	testdb.Must(t, err)
	defer old.Close()
	defer close(end)
	testdb.Must(t, old.Ping(t.Context()))
	db.ForgetServer()
	db.Pool().Reset()
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	testdb.Must(t, db.Pool().Ping(soon))
	testrun.True(t, "the session of the old primary is closed", func() bool { return len(closing) > 0 && db.Timeline() > 0 })
}
