package idempotency_test

import (
	"context"
	"errors"
	"io"
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

func TestOnce_whoseKeyCannotBeReadAfterALostCommitIsUnknown(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	direct, w := testdb.OpenAt(t, url, postgres.Options{}), &work{}
	lock := testdb.Begin(t, direct.Pool(), `select 1`)
	limited := testdb.OpenAt(t, url, postgres.Options{StatementTimeout: time.Second})
	got := once(t.Context(), ends{limited.Pool(), func(ctx context.Context, tx pgx.Tx) error {
		testdb.Must(t, tx.Commit(ctx))
		testdb.Exec(t, lock, `lock table idempotency_keys`)
		return io.ErrUnexpectedEOF
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
