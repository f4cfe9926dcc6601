package idempotency_test

import (
	"context"
	"errors"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// loses is a pool whose COMMIT takes effect, and whose answer is lost.
type loses struct {
	*pgxpool.Pool

	then func()
}

func (l loses) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := l.Pool.Begin(ctx)
	return losesTx{tx, l.then}, err
}

type losesTx struct {
	pgx.Tx

	then func()
}

func (l losesTx) Commit(ctx context.Context) error {
	if err := l.Tx.Commit(ctx); err != nil {
		return err
	}
	l.then()
	return io.ErrUnexpectedEOF
}

func TestOnce_whoseKeyCannotBeReadAfterALostCommitIsUnknown(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	direct, w := testdb.OpenAt(t, url, postgres.Options{}), &work{}
	lock, err := direct.Pool().Begin(t.Context())
	testdb.Must(t, err)
	limited := testdb.OpenAt(t, url, postgres.Options{StatementTimeout: time.Second})
	got := once(t.Context(), loses{limited.Pool(), func() {
		testdb.Exec(t, lock, `set idle_in_transaction_session_timeout = 0`) // it is held for as long as is asked
		testdb.Exec(t, lock, `lock table idempotency_keys`)
	}}, order{ID: "o-1"}, w.do)
	if !errors.Is(got.Err, idempotency.ErrUnknown) {
		t.Errorf("%+v", got)
	}
	testdb.Must(t, lock.Rollback(t.Context()))
	if got := once(t.Context(), direct.Pool(), order{ID: "o-1"}, w.do); got.Err != nil || !got.Replayed {
		t.Errorf("then %+v", got)
	}
	wantEffects(t, direct, 1)
}

func TestOnce_reportsAnInterruptedWait(t *testing.T) {
	t.Parallel()
	end := func(how string) func(*testing.T, *postgres.DB, pgx.Tx) {
		return func(t *testing.T, db *postgres.DB, _ pgx.Tx) {
			t.Helper()
			testdb.Exec(t, db.Pool(), `select `+how+`(pid) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`)
		}
	}
	commits := func(t *testing.T, _ *postgres.DB, rival pgx.Tx) {
		t.Helper()
		testdb.Must(t, rival.Commit(t.Context()))
	}
	for _, test := range []struct {
		name  string
		end   func(t *testing.T, db *postgres.DB, rival pgx.Tx)
		level string
		want  error
	}{
		{"an operator cancels it", end("pg_cancel_backend"), "read committed", idempotency.ErrInFlight},
		{"an operator terminates it", end("pg_terminate_backend"), "read committed", idempotency.ErrUnknown},
		{"its rival commits under repeatable read", commits, "repeatable read", idempotency.ErrInFlight},
		{"its rival commits under serializable", commits, "serializable", idempotency.ErrInFlight},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			db, w := testdb.OpenAt(t, url, postgres.Options{}), &work{}
			rival, waiting := rivalInFlight(t, db), testdb.OpenAt(t, url, postgres.Options{Settings: map[string]string{"default_transaction_isolation": test.level}})
			call := func() (replayed bool, err error) {
				_, replayed, err = idempotency.Once(t.Context(), waiting.Pool(), theKey(), idempotency.Options{Request: theRequest()},
					func(ctx context.Context, tx pgx.Tx) (any, error) { return w.do(ctx, tx) })
				return replayed, err
			}
			var group errgroup.Group
			group.Go(func() error {
				_, err := call()
				return err
			})
			await.Blocked(t, db, 1)
			test.end(t, db, rival)
			if err := group.Wait(); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			_ = rival.Commit(t.Context())                                  // it may have been
			if replayed, err := call(); !replayed || w.calls.Load() != 0 { // its answer is no JSON
				t.Errorf("then after %d calls: %v", w.calls.Load(), err)
			}
		})
	}
}

func TestOnce_refusesWhatIsNoFaultOfTheDatabase(t *testing.T) {
	t.Parallel()
	db, w := testdb.Reused(t), &work{}
	aborted, err := db.Pool().Begin(t.Context())
	testdb.Must(t, err)
	_, _ = aborted.Exec(t.Context(), `select 1/0`)
	ended, err := db.Pool().Begin(t.Context())
	testdb.Must(t, err)
	testdb.Must(t, ended.Rollback(t.Context()))
	defer func() { _ = aborted.Rollback(context.WithoutCancel(t.Context())) }()
	for name, test := range map[string]struct {
		db    idempotency.Beginner
		scope string
		want  error
	}{
		"an aborted transaction":      {aborted, "acme", nil},
		"an ended transaction":        {ended, "acme", pgx.ErrTxClosed},
		"a scope that is not UTF-8":   {db.Pool(), "\xff", idempotency.ErrInvalid},
		"a scope with a zero byte":    {db.Pool(), "a\x00", idempotency.ErrInvalid},
		"a wait longer than a server": {db.Pool(), "acme", nil},
	} {
		_, _, err := idempotency.Once(t.Context(), test.db, idempotency.Key{Scope: test.scope, Value: "k"}, idempotency.Options{Wait: math.MaxInt64}, w.do)
		if test.want != nil && !errors.Is(err, test.want) || errors.Is(err, idempotency.ErrUnknown) || (err == nil) != strings.HasPrefix(name, "a wait") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnce_ofAFunctionThatMisusesTheTransaction(t *testing.T) {
	t.Parallel()
	for name, misuse := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"rows left open": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, insertEffect+` returning 1`) //nolint:sqlclosecheck // the fault
			return err
		},
		"a rollback in SQL": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `rollback`)
			return err
		},
		"a goroutine that ends": func(context.Context, pgx.Tx) error {
			runtime.Goexit()
			return nil
		},
	} {
		t.Run(name+" undoes the writes and leaves the key free", func(t *testing.T) {
			t.Parallel()
			db, w, done := testdb.Reused(t), &work{}, make(chan struct{})
			go func() {
				defer close(done)
				got := once(t.Context(), db.Pool(), order{ID: "o-1"}, func(ctx context.Context, tx pgx.Tx) (receipt, error) {
					r, err := w.do(ctx, tx)
					return r, errors.Join(err, misuse(ctx, tx))
				})
				if got.Err == nil || errors.Is(got.Err, idempotency.ErrUnknown) {
					t.Errorf("%+v", got)
				}
			}()
			await.Receive(t, "the call", done)
			wantEffects(t, db, 0)
			if got := once(t.Context(), db.Pool(), order{ID: "o-1"}, w.do); got.Err != nil || got.Replayed {
				t.Errorf("then %+v", got)
			}
		})
	}

	t.Run("a commit in SQL makes the effect once, and later calls say that it expired", func(t *testing.T) {
		t.Parallel()
		db, w := testdb.Reused(t), &work{}
		for range 2 {
			got := once(t.Context(), db.Pool(), order{ID: "o-1"}, func(ctx context.Context, tx pgx.Tx) (receipt, error) {
				r, err := w.do(ctx, tx)
				_, ended := tx.Exec(ctx, `commit`)
				return r, errors.Join(err, ended)
			})
			if got.Err == nil || w.calls.Load() > 1 && !errors.Is(got.Err, idempotency.ErrExpired) {
				t.Errorf("%+v", got)
			}
		}
		wantEffects(t, db, 1)
	})
}

func TestOnce_inEachModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			config, err := pgxpool.ParseConfig(url)
			testdb.Must(t, err)
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			testdb.Must(t, err)
			t.Cleanup(pool.Close)
			w := &work{}
			for call := range 2 {
				if got := once(t.Context(), pool, order{ID: "o-1"}, w.do); got.Err != nil || got.Replayed != (call > 0) || got.Value.Number != 1 {
					t.Errorf("%+v", got)
				}
			}
			wantEffects(t, testdb.OpenAt(t, url, postgres.Options{}), 1)
		})
	}
}

// forgets deletes the keys before it reads one.
type forgets struct{ *pgxpool.Pool }

func (f forgets) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if _, err := f.Exec(ctx, `delete from idempotency_keys`); err != nil {
		return nil, err
	}
	return f.Pool.Query(ctx, sql, args...)
}

func TestOnce_whoseKeyIsDeletedBeforeTheStandbyConfirmsIt(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	testdb.Exec(t, testdb.OpenAt(t, url, postgres.Options{}).Pool(), `create function public.current_setting(name text) returns text language sql
		as $$ select case name when 'synchronous_standby_names' then 'standby' else pg_catalog.current_setting(name) end $$`)
	db, w := testdb.OpenAt(t, url, postgres.Options{Settings: map[string]string{"search_path": "public, pg_catalog"}}), &work{}
	key := idempotency.Key{Value: "k"} // without a request: nothing else tells that it is gone
	for call := range 2 {
		_, _, err := idempotency.Once(t.Context(), forgets{db.Pool()}, key, idempotency.Options{}, w.do)
		if call > 0 && !errors.Is(err, idempotency.ErrInFlight) || call == 0 && err != nil {
			t.Errorf("call %d: %v", call+1, err)
		}
	}
	wantEffects(t, db, 1)
}

// bounded is a pool that refuses to end a transaction or a savepoint without a deadline.
type bounded struct{ *pgxpool.Pool }

func (b bounded) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := b.Pool.Begin(ctx)
	return boundedTx{tx}, err
}

type boundedTx struct{ pgx.Tx }

func (b boundedTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := b.Tx.Begin(ctx)
	return boundedTx{tx}, err
}

func (b boundedTx) Commit(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("without a deadline")
	}
	return b.Tx.Commit(ctx)
}

func TestOnce_boundsTheEndOfItsTransaction(t *testing.T) {
	t.Parallel()
	if got := once(t.Context(), bounded{testdb.Reused(t).Pool()}, order{ID: "o-1"}, new(work).do); got.Err != nil {
		t.Error(got.Err)
	}
}
