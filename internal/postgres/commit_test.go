package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

const (
	insert        = `insert into effects (id, twin) values ($1, $2)`
	insertTwin    = `insert into effects (twin, id) values ($1, $2)`
	insertPoison  = `insert into effects (id, twin) values (1 / $1, 0)`
	insertNowhere = `insert into nowhere (id) values ($1)`
	insertDiary   = `insert into diaries (merchant_id, id) values ($1, $2)`
)

// declared are the statements of these tests that may share a commit.
func declared() *groupcommit.Order {
	return groupcommit.NewOrder(append([]groupcommit.Statement{
		groupcommit.Insert(insert, "%s", "%s"),
		groupcommit.Insert(insertTwin, "%s", "%s"),
		groupcommit.Insert(insertPoison, "1 / %s, 0"),
		groupcommit.Insert(insertNowhere, "%s"),
		groupcommit.Insert(insertDiary, "%s", "%s"),
		groupcommit.Insert(insertRecord, "%s", "%s", "%s", "%s", "%s", "%s", "%s", "coalesce(%s, 'epoch'::timestamptz)"),
		{SQL: takeStock, Table: "stock", Row: groupcommit.ByText},
		{SQL: endMessage, Table: "inbox", Row: groupcommit.ByNumber},
	}, inbox.Writes()...)...)
}

// effects is a database with one table: an id once, and a twin that is checked
// as late as the commit.
func effects(t *testing.T, o postgres.Options) (db *postgres.DB, address string) {
	t.Helper()
	address = testdb.URL(t)
	db = open(t, address, o)
	_, err := db.Pool().Exec(t.Context(), `
create table effects (
  id   int constraint effects_once primary key constraint effects_not_negative check (id >= 0),
  twin int,
  constraint effects_twin_once unique (twin) deferrable initially deferred
)`)
	if err != nil {
		t.Fatal(err)
	}
	return db, address
}

func open(t *testing.T, address string, o postgres.Options) *postgres.DB {
	t.Helper()
	o.AllowUnsafeDurability, o.AllowPlaintext = true, true
	db, err := postgres.Open(t.Context(), address, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

func batch(ids ...int) *pgx.Batch {
	b := &pgx.Batch{}
	for _, id := range ids {
		b.Queue(insert, id, id)
	}
	return b
}

// stored are the ids that are there.
func stored(t *testing.T, db postgres.Querier) []int {
	t.Helper()
	ids, err := collect[int](db.Query(t.Context(), `select id from effects order by id`))
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func wantStored(t *testing.T, db postgres.Querier, want ...int) {
	t.Helper()
	if diff := cmp.Diff(append([]int{}, want...), stored(t, db)); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

func TestCommit(t *testing.T) {
	t.Parallel()

	t.Run("all of a batch is stored", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{})
		if err := db.Commit(t.Context(), batch(1, 2, 3)); err != nil {
			t.Fatal(err)
		}
		wantStored(t, db, 1, 2, 3)
	})

	t.Run("an empty batch is refused", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{})
		if err := db.Commit(t.Context(), &pgx.Batch{}); err == nil {
			t.Error("a batch of nothing was committed")
		}
	})

	t.Run("a refused statement takes the whole batch with it", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{MaxConns: 1})
		if err := db.Commit(t.Context(), batch(1)); err != nil {
			t.Fatal(err)
		}
		err := db.Commit(t.Context(), batch(2, 1, 3))
		var refusal *pgconn.PgError
		if !errors.As(err, &refusal) || errors.Is(err, postgres.ErrUnknown) || errors.Is(err, postgres.ErrNotCommitted) {
			t.Errorf("the error is %v, want a refusal", err)
		}
		if got := postgres.Constraint(err); got != "effects_once" {
			t.Errorf("refused by %q, want effects_once", got)
		}
		wantStored(t, db, 1)
		if err := db.Commit(t.Context(), batch(4)); err != nil {
			t.Errorf("the same connection commits no more: %v", err)
		}
	})

	t.Run("a constraint that is checked at commit refuses too", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{})
		b := &pgx.Batch{}
		b.Queue(insert, 1, 7)
		b.Queue(insert, 2, 7)
		if err := db.Commit(t.Context(), b); postgres.Constraint(err) != "effects_twin_once" {
			t.Errorf("the error is %v, want one of effects_twin_once", err)
		}
		wantStored(t, db)
	})

	t.Run("a statement that cannot be prepared is a refusal", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{})
		b := batch(1)
		b.Queue(`insert into nowhere values (1)`)
		err := db.Commit(t.Context(), b)
		var refusal *pgconn.PgError
		if !errors.As(err, &refusal) || errors.Is(err, postgres.ErrUnknown) {
			t.Errorf("the error is %v, want a refusal", err)
		}
		wantStored(t, db)
	})
}

func TestCommitOfACutConnection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		side     failpoint.Side
		executes int
		want     error
		stored   []int
	}{
		{"cut before the server has the batch", failpoint.Before, 2, postgres.ErrUnknown, nil},
		{"cut after the server has committed it", failpoint.After, 2, postgres.ErrUnknown, []int{1, 2}},
		{"cut before its statements are prepared", failpoint.Before, 0, postgres.ErrNotCommitted, nil},
		{"cut after its statements are prepared", failpoint.After, 0, postgres.ErrNotCommitted, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			direct, address := effects(t, postgres.Options{})
			proxy := failpoint.StartCutter(t, address)
			db := open(t, proxy.URL(), postgres.Options{MaxConns: 1})
			proxy.Arm(test.side, test.executes)
			err := db.Commit(t.Context(), batch(1, 2))
			if !errors.Is(err, test.want) {
				t.Errorf("the error is %v, want %v", err, test.want)
			}
			if errors.Is(err, postgres.ErrUnknown) && errors.Is(err, postgres.ErrNotCommitted) {
				t.Errorf("the error is both unknown and certain: %v", err)
			}
			if proxy.Cuts() != 1 {
				t.Fatalf("%d connections were cut, want 1", proxy.Cuts())
			}
			wantStored(t, direct, test.stored...)
			if err := db.Commit(t.Context(), batch(3)); err != nil {
				t.Errorf("the pool does not recover: %v", err)
			}
		})
	}

	t.Run("a server out of reach has not committed", func(t *testing.T) {
		t.Parallel()
		_, address := effects(t, postgres.Options{})
		proxy := failpoint.StartCutter(t, address)
		db := open(t, proxy.URL(), postgres.Options{})
		proxy.Close()
		db.Pool().Reset()
		err := db.Commit(t.Context(), batch(1))
		if !errors.Is(err, postgres.ErrNotCommitted) || !postgres.OutcomeOf(err).MayPass() {
			t.Errorf("the error is %v, want ErrNotCommitted", err)
		}
	})

	t.Run("a session that is ended under a commit leaves its outcome unknown", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{Application: "victim"})
		release := hold(t, db, 1)
		defer release()
		committed := commit(t.Context(), db, batch(1))
		const end = `
select pg_terminate_backend(pid)
  from pg_stat_activity
 where datname = current_database()
   and wait_event_type = 'Lock'`
		await.True(t, "a session waits and is ended", func() bool {
			var ended bool
			err := db.QueryRow(t.Context(), end).Scan(&ended)
			return err == nil && ended
		})
		if err := <-committed; !errors.Is(err, postgres.ErrUnknown) {
			t.Errorf("the error is %v, want ErrUnknown", err)
		}
	})
}

func TestCommitOutlivesItsCaller(t *testing.T) {
	t.Parallel()

	t.Run("who hung up before", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := db.Commit(ctx, batch(1)); err != nil {
			t.Error(err)
		}
		wantStored(t, db, 1)
	})

	t.Run("who hung up meanwhile", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{})
		release := hold(t, db, 1)
		ctx, cancel := context.WithCancel(t.Context())
		committed := commit(ctx, db, batch(1, 2))
		await.Blocked(t, db, 1)
		cancel()
		release()
		if err := <-committed; err != nil {
			t.Errorf("the commit ended with %v", err)
		}
		wantStored(t, db, 1, 2)
	})
}

func TestCommitThatWaits(t *testing.T) {
	t.Parallel()

	t.Run("for a lock is refused after the lock time-out", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{LockTimeout: 50 * time.Millisecond})
		release := hold(t, db, 2)
		defer release()
		err := db.Commit(t.Context(), batch(1, 2))
		if postgres.OutcomeOf(err) != postgres.Locked || !postgres.OutcomeOf(err).MayPass() || errors.Is(err, postgres.ErrUnknown) {
			t.Errorf("the error is %v, want a lock time-out", err)
		}
		wantStored(t, db)
	})

	t.Run("too long in a statement is refused after the statement time-out", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{StatementTimeout: 300 * time.Millisecond})
		b := batch(1)
		b.Queue(`select pg_sleep(60)`)
		err := db.Commit(t.Context(), b)
		if !postgres.OutcomeOf(err).MayPass() || postgres.OutcomeOf(err) == postgres.Locked || errors.Is(err, postgres.ErrUnknown) {
			t.Errorf("the error is %v, want a statement time-out", err)
		}
		wantStored(t, db)
	})
}

func TestRefusalsAreTold(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for _, test := range []struct {
		code                              string
		unknown, transient, lock, guarded bool
	}{
		{code: "23505", guarded: true},                   // unique
		{code: "23514", guarded: true},                   // check
		{code: "23503", guarded: true},                   // foreign key
		{code: "23502", guarded: true},                   // not null
		{code: "23P01", guarded: true},                   // exclusion
		{code: "22P02"},                                  // a value that cannot be read
		{code: "42501"},                                  // no privilege
		{code: "40001", transient: true},                 // serialization
		{code: "40P01", transient: true},                 // deadlock
		{code: "55P03", transient: true, lock: true},     // lock time-out
		{code: "57014", transient: true},                 // statement time-out
		{code: "57P01", unknown: true, transient: false}, // a shutdown
		{code: "57P03", unknown: true},                   // a start
		{code: "08006", unknown: true},                   // a lost connection
	} {
		t.Run(test.code, func(t *testing.T) {
			t.Parallel()
			b := &pgx.Batch{}
			b.Queue(fmt.Sprintf(`do $$ begin raise using errcode = '%s', constraint = 'the_guard', message = 'planted'; end $$`, test.code))
			err := fmt.Errorf("a caller's words: %w", db.Commit(t.Context(), b))
			if got := errors.Is(err, postgres.ErrUnknown); got != test.unknown {
				t.Errorf("unknown: %v", got)
			}
			if got := postgres.OutcomeOf(err).MayPass(); got != test.transient {
				t.Errorf("transient: %v", got)
			}
			if got := postgres.OutcomeOf(err) == postgres.Locked; got != test.lock {
				t.Errorf("a lock time-out: %v", got)
			}
			want := ""
			if test.guarded {
				want = "the_guard"
			}
			if got := postgres.Constraint(err); got != want {
				t.Errorf("the constraint is %q, want %q", got, want)
			}
		})
	}

	t.Run("other errors are none of these", func(t *testing.T) {
		t.Parallel()
		for _, err := range []error{nil, errors.New("something"), postgres.ErrUnknown, context.DeadlineExceeded, &pgconn.PgError{Severity: "ERROR"}} {
			if postgres.Constraint(err) != "" || postgres.OutcomeOf(err).MayPass() || postgres.OutcomeOf(err) == postgres.Locked {
				t.Errorf("%v is taken for a refusal", err)
			}
		}
	})
}

// hold inserts an id in a transaction that stays open, and returns how to end
// it without the id.
func hold(t *testing.T, db *postgres.DB, id int) (release func()) {
	t.Helper()
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), insert, id, id); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// commit commits beside the test.
func commit(ctx context.Context, db *postgres.DB, b *pgx.Batch) <-chan error {
	committed := make(chan error, 1)
	go func() { committed <- db.Commit(ctx, b) }()
	return committed
}
