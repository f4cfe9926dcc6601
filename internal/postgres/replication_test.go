package postgres_test

import (
	"errors"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestCommit_closesASessionThatRefusesWrites(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := things(t)
	testdb.Exec(t, db.Pool(), `set default_transaction_read_only = on`)
	if db.Commit(t.Context(), thing("acme", 1)) == nil {
		t.Fatal("the session takes writes: this shows nothing")
	}
	testrun.Same(t, "its successor", "off", testdb.One[string](t, db, `show transaction_read_only`))
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
	promoted := testdb.Session(t, standby.URL("postgres"))
	hosts := testdb.Session(t, primary.URL("postgres")).Config().Host + "," + promoted.Config().Host
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
	if err := held.Ping(t.Context()); err == nil || db.Timeline() != 2 {
		t.Errorf("a session of the old primary answers: %v; the timeline is %d", err, db.Timeline())
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
