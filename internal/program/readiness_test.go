package program_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// clock stands still until it is moved.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time           { return time.Unix(1_800_000_000, c.at.Load()) }
func (c *clock) pass(after time.Duration) { c.at.Add(int64(after)) }

func readiness(t *testing.T, db *postgres.DB, now func() time.Time) *program.Readiness {
	t.Helper()
	r := program.NewReadiness(t.Context(), db, now)
	t.Cleanup(r.Close)
	return r
}

func wantReady(t *testing.T, r *program.Readiness, c *clock) {
	t.Helper()
	if why, err := answered(t, r, c); why != "" || err != nil {
		t.Errorf("not ready: %q, %v", why, err)
	}
}

// answered asks until there is an answer: a busy machine may give a look at the database up.
func answered(t *testing.T, r *program.Readiness, c *clock) (why string, err error) {
	t.Helper()
	testrun.Progress(t, "the database answers in time", func() (seen string, done bool) {
		if why, err = r.Ask(t.Context()); errors.Is(err, context.DeadlineExceeded) {
			c.pass(time.Second) // for which the answer is valid
		}
		return why, !errors.Is(err, context.DeadlineExceeded)
	})
	return why, err
}

func TestReadiness(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	t.Run("a pool that is all in use is ready", func(t *testing.T) {
		t.Parallel()
		db, c := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 1}), &clock{}
		conn, err := db.Pool().Acquire(t.Context())
		testdb.Must(t, err)
		defer conn.Release()
		wantReady(t, readiness(t, db, c.now), c)
	})

	t.Run("concurrent calls share one check, which continues without its caller", func(t *testing.T) {
		t.Parallel()
		var checks atomic.Int64
		begun, end, c := make(chan struct{}), make(chan struct{}), &clock{}
		r := readiness(t, testdb.Open(t), c.now)
		wantReady(t, r, c) // it is connected
		r.Own = func(ctx context.Context) string {
			if checks.Add(1) == 1 {
				close(begun)
				<-end
			}
			if errors.Is(ctx.Err(), context.Canceled) { // a deadline that is over says that the machine is busy
				return "it was canceled"
			}
			return "it is the test"
		}
		c.pass(time.Second)
		impatient, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		ask := func(ctx context.Context) {
			if why, err := r.Ask(ctx); why != "it is the test" || err != nil {
				t.Errorf("%q, %v", why, err)
			}
		}
		all.Go(func() { ask(impatient) })
		<-begun
		leave()
		for range 20 {
			all.Go(func() { ask(t.Context()) })
		}
		close(end)
		all.Wait()
		for want, after := range []time.Duration{time.Second - 1, 1} {
			c.pass(after)
			if ask(t.Context()); checks.Load() != int64(want+1) {
				t.Errorf("%d checks, want %d", checks.Load(), want+1)
			}
		}
	})

	t.Run("a database that does not answer ends in a time-out", func(t *testing.T) {
		t.Parallel()
		db, c := testdb.Open(t), &clock{}
		r := readiness(t, db, c.now)
		wantReady(t, r, c)
		tx := testdb.Begin(t, db.Pool(), `lock table payonce_migrations in access exclusive mode`)
		c.pass(time.Second)
		// A lock timeout, which is later, would be an error of PostgreSQL.
		if why, err := r.Ask(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q, %v, want %v", why, err, context.DeadlineExceeded)
		}
		testdb.Must(t, tx.Rollback(t.Context()))
		c.pass(time.Second)
		wantReady(t, r, c)
	})

	t.Run("a lost connection is replaced, if there is a database", func(t *testing.T) {
		t.Parallel()
		other, db, c := testdb.Session(t, testdb.Empty(t)), testdb.Open(t), &clock{}
		r := readiness(t, db, c.now)
		wantReady(t, r, c)
		name := db.Pool().Config().ConnConfig.Database
		const end = `select pg_terminate_backend(pid) from pg_stat_activity where datname = `
		testdb.Exec(t, other, end+"'"+name+"'")
		c.pass(time.Second)
		wantReady(t, r, c)
		testdb.Exec(t, other, "drop database "+pgx.Identifier{name}.Sanitize()+" with (force)")
		wantReady(t, r, c) // as a second ago
		c.pass(time.Second)
		if why, err := r.Ask(t.Context()); err == nil || strings.Contains(err.Error(), "password") {
			t.Errorf("%q, %v", why, err)
		}
	})
}

// TestReadiness_leavesAnOldPrimaryThatStillAnswers promotes the standby and lets the old primary run, which is
// the first host of the URL. The second takes connections and says nothing.
func TestReadiness_leavesAnOldPrimaryThatStillAnswers(t *testing.T) {
	testrun.Long(t, "it starts two servers, and the other hosts are tried each ten seconds")
	t.Parallel()
	primary := testrun.Server(t, local.Options{InMemory: true})
	standby, err := primary.Standby(t.Context())
	testdb.Must(t, err)
	t.Cleanup(func() { testdb.Must(t, standby.Close()) })
	old, promoted := testdb.Session(t, primary.URL("postgres")), testdb.Session(t, standby.URL("postgres"))
	if _, err := postgres.Open(t.Context(), standby.URL("postgres"), options()); !errors.Is(err, postgres.ErrUnreachable) {
		t.Errorf("a standby is not waited for, though it may be promoted: %v", err)
	}
	testdb.OpenAt(t, standby.URL("postgres"), postgres.Options{AllowReadOnly: true})
	hung, err := os.MkdirTemp("", "h") //nolint:usetesting // the path of a socket is short
	testdb.Must(t, err)
	defer func() { _ = os.RemoveAll(hung) }() // nothing listens in it yet
	hosts := strings.Join([]string{old.Config().Host, hung, promoted.Config().Host}, ",")
	db := testdb.OpenAt(t, "postgres://postgres@/postgres?port=5432,5432,5432&host="+hosts, postgres.Options{})
	held, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	defer held.Release()
	r := readiness(t, db, time.Now)
	testrun.True(t, "the old primary answers", func() bool { _, err := r.Ask(t.Context()); return err == nil })
	listener, err := net.Listen("unix", filepath.Join(hung, ".s.PGSQL.5432")) //nolint:noctx // at once
	testdb.Must(t, err)
	defer func() { _ = listener.Close() }()
	testdb.Exec(t, promoted, `select pg_promote()`)
	testrun.True(t, "the new primary is found", func() bool { return db.Timeline() == 2 })
	testrun.True(t, "the session of the old primary is closed", func() bool { return held.Ping(t.Context()) != nil })
	for range 3 { // new sessions do not ask the old primary first
		testrun.Same(t, "the host", promoted.Config().Host, testdb.One[string](t, db, `show unix_socket_directories`))
		db.Pool().Reset()
	}
	testdb.Must(t, standby.Close())
	if _, err := db.Pool().Acquire(t.Context()); !errors.Is(err, postgres.ErrOldTimeline) {
		t.Errorf("the old primary is refused with %v", err)
	}
}

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
	testrun.Long(t, "it needs a database")
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
