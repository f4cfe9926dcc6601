package postgres_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

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

// TestServers_leaveAnOldPrimaryThatStillAnswers promotes the standby and lets the old primary
// run, which is the first host of the URL.
func TestServers_leaveAnOldPrimaryThatStillAnswers(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it starts two servers")
	primary := testrun.Server(t, local.Options{InMemory: true})
	standby, err := primary.Standby(t.Context())
	testdb.Must(t, err)
	t.Cleanup(func() { testdb.Must(t, standby.Close()) })
	old, promoted := testdb.Session(t, primary.URL("postgres")), testdb.Session(t, standby.URL("postgres"))
	hosts := old.Config().Host + "," + promoted.Config().Host
	db, err := postgres.Open(t.Context(), "postgres://postgres@/postgres?port=5432,5432&host="+hosts, postgres.Options{AllowUnsafeDurability: true})
	testdb.Must(t, err)
	t.Cleanup(db.Close)
	o := postgres.Options{AllowUnsafeDurability: true}
	wantOpened(t, t.Context(), standby.URL("postgres"), o, postgres.ErrUnreachable.Error()) // it may be promoted
	o.AllowReadOnly = true
	wantOpened(t, t.Context(), standby.URL("postgres"), o, "")
	held, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	defer held.Release()
	db.Look(t.Context()) // the standby is refused

	testdb.Exec(t, promoted, `select pg_promote()`)
	db.Look(t.Context())
	testrun.True(t, "the session of the old primary is closed", func() bool { return held.Ping(t.Context()) != nil })
	if db.Timeline() != 2 {
		t.Errorf("the timeline is %d", db.Timeline())
	}
	for range 3 { // new sessions do not ask the old primary first
		want(t, db, `show unix_socket_directories`, promoted.Config().Host)
		db.Pool().Reset()
	}
	testdb.Must(t, standby.Close())
	if _, err := db.Pool().Acquire(t.Context()); !errors.Is(err, postgres.ErrOldTimeline) {
		t.Errorf("the old primary is refused with %v", err)
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
