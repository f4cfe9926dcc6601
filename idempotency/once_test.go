package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

type receipt struct {
	Number int64 `json:"number"`
	Paid   int64 `json:"paid"`
	Nonce  int   `json:"-"`
}

// result is what Once returned.
type result[T any] struct {
	Value    T
	Replayed bool
	Err      error
}

// onceOf calls a function for the order o-1.
func onceOf[T any](ctx context.Context, db idempotency.Beginner, fn func(context.Context, pgx.Tx) (T, error)) (r result[T]) {
	_, request, err := idempotency.ByContent("acme", "order.v1", order{ID: "o-1"})
	if err != nil {
		return result[T]{Err: err}
	}
	r.Value, r.Replayed, r.Err = idempotency.Once(ctx, db, idempotency.Key{Scope: "acme", Operation: "order.v1", Value: "o-1"}, request, idempotency.Options{}, fn)
	return r
}

func pay(ctx context.Context, tx pgx.Tx) (receipt, error) {
	_, err := tx.Exec(ctx, insertEffect)
	return receipt{Number: 1, Paid: math.MaxInt64, Nonce: 1}, err
}

// unreadable is written as JSON and never read.
type unreadable struct{}

func (*unreadable) UnmarshalJSON([]byte) error { return errPlanted }

func TestOnce_results(t *testing.T) {
	t.Parallel()

	t.Run("the first call returns the result as later ones read it", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		for n := range 2 {
			want := result[receipt]{Value: receipt{Number: 1, Paid: math.MaxInt64}, Replayed: n > 0}
			if diff := cmp.Diff(want, onceOf(t.Context(), db.Pool(), pay)); diff != "" {
				t.Errorf("call %d (-want +got):\n%s", n+1, diff)
			}
		}
	})

	t.Run("a result that another version wrote is an error, not an empty one", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		onceOf(t.Context(), db.Pool(), pay)
		got := onceOf(t.Context(), db.Pool(), func(context.Context, pgx.Tx) (string, error) { return "", nil })
		if got.Err == nil || !strings.HasPrefix(got.Err.Error(), "read the stored result of order.v1: ") || !got.Replayed {
			t.Errorf("%+v", got)
		}
	})

	t.Run("a result that no call could read is not stored", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (unreadable, error) {
			_, err := pay(ctx, tx)
			return unreadable{}, err
		})
		if !errors.Is(got.Err, errPlanted) {
			t.Errorf("%+v", got)
		}
		wantEffects(t, db, 0)
	})

	t.Run("a final error undoes the writes, and is the outcome of the key", func(t *testing.T) {
		t.Parallel()
		db, calls := testdb.Reused(t), 0
		for n := range 2 {
			got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (receipt, error) {
				calls++
				_, _ = pay(ctx, tx)
				_, _ = tx.Exec(ctx, `select 1/0`) // a refusal does not hinder it
				return receipt{Paid: 1}, fmt.Errorf("pay: %w", &idempotency.FinalError{Code: "declined", Message: "the card was declined"})
			})
			final, ok := errors.AsType[*idempotency.FinalError](got.Err)
			if !ok || final.Code != "declined" || got.Err.Error() != "the card was declined" || got.Replayed != (n > 0) || got.Value != (receipt{}) {
				t.Errorf("call %d: %+v", n+1, got)
			}
		}
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
		wantEffects(t, db, 0)
	})
}

func leaveRowsOpen(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Query(ctx, insertEffect+` returning 1`) //nolint:sqlclosecheck // the fault
	return err
}

func TestOnce_failures(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"a goroutine that ends": func(context.Context, pgx.Tx) error { runtime.Goexit(); return nil },
		"a refused statement":   func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `select 1/0`); return err },
		"an ignored refusal":    func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, `select 1/0`); return nil },
		"a rollback of its own": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"a rollback in SQL":     func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `rollback`); return err },
		"a commit of its own":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"rows left open":        leaveRowsOpen,
		"a context that ends": func(ctx context.Context, tx pgx.Tx) error {
			ended, end := context.WithCancel(ctx)
			end()
			_, err := tx.Exec(ended, insertEffect)
			return err
		},
		"a result that is no JSON": nil,
	} {
		t.Run(name+" undoes the writes and leaves the key free", func(t *testing.T) {
			t.Parallel()
			db, done := testdb.Reused(t), make(chan struct{})
			go func() {
				defer close(done)
				got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (any, error) {
					if _, err := pay(ctx, tx); err != nil {
						return nil, err
					}
					if fail == nil {
						return math.Inf(1), nil
					}
					return nil, fail(ctx, tx)
				})
				if got.Err == nil || errors.Is(got.Err, idempotency.ErrUnknown) {
					t.Errorf("%+v", got)
				}
			}()
			await.Receive(t, "the call", done)
			wantEffects(t, db, 0)
			if got := onceOf(t.Context(), db.Pool(), pay); got.Err != nil || got.Replayed {
				t.Errorf("then %+v", got)
			}
			wantEffects(t, db, 1)
		})
	}
}

func TestOnce_worksAgainAfterALostConnection(t *testing.T) {
	t.Parallel()
	db, calls := testdb.Reused(t), 0
	got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (receipt, error) {
		r, err := pay(ctx, tx)
		if calls++; calls == 1 {
			testdb.Must(t, tx.Conn().Close(ctx))
		}
		return r, err
	})
	if got.Err != nil || got.Replayed || calls != 2 {
		t.Errorf("%d calls of the function: %+v", calls, got)
	}
	wantEffects(t, db, 1)
}

func TestOnce_inTheCallersTransaction(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, commits := range []bool{false, true} {
		tx, err := db.Pool().Begin(t.Context())
		testdb.Must(t, err)
		failing := func(context.Context, pgx.Tx) (receipt, error) { return receipt{}, errPlanted }
		if got := onceOf(t.Context(), tx, failing); !errors.Is(got.Err, errPlanted) {
			t.Errorf("%+v", got)
		}
		for n := range 2 {
			if got := onceOf(t.Context(), tx, pay); got.Err != nil || got.Replayed != (n > 0) {
				t.Errorf("call %d: %+v", n+1, got)
			}
		}
		end := map[bool]func(context.Context) error{true: tx.Commit, false: tx.Rollback}[commits]
		testdb.Must(t, end(t.Context()))
	}
	wantEffects(t, db, 1)
	if got := onceOf(t.Context(), db.Pool(), pay); got.Err != nil || !got.Replayed {
		t.Errorf("%+v", got)
	}
}

func TestOnce_withinItselfOverAnotherConnectionIsInFlight(t *testing.T) {
	t.Parallel()
	db, key := testdb.Reused(t), idempotency.Key{Value: "k1"}
	o := idempotency.Options{Wait: -1}
	_, _, err := idempotency.Once(t.Context(), db.Pool(), key, idempotency.Request{}, o, func(ctx context.Context, tx pgx.Tx) (receipt, error) {
		if _, _, err := idempotency.Once(ctx, db.Pool(), key, idempotency.Request{}, o, pay); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the call within itself: %v", err)
		}
		return pay(ctx, tx)
	})
	testdb.Must(t, err)
	wantEffects(t, db, 1)
}

func TestOnce_leavesTheSessionsLockTimeOutToTheWork(t *testing.T) {
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: time.Minute})
	got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (timeout string, err error) {
		err = tx.QueryRow(ctx, `select current_setting('lock_timeout')`).Scan(&timeout)
		return timeout, err
	})
	if got.Err != nil || got.Value != "1min" {
		t.Errorf("%+v", got)
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
			for n := range 2 {
				if got := onceOf(t.Context(), pool, pay); got.Err != nil || got.Replayed != (n > 0) || got.Value.Number != 1 {
					t.Errorf("%+v", got)
				}
			}
			wantEffects(t, testdb.OpenAt(t, url, postgres.Options{}), 1)
		})
	}
}

// TestOnce_cutAnywhere cuts the connection after each of its round trips in turn. Whatever
// the call returned, the next one finds or makes its one effect.
func TestOnce_cutAnywhere(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	direct := testdb.OpenAt(t, url, postgres.Options{})
	for n, cut := 1, true; cut; n++ {
		hook := &nth{n: int64(n)}
		proxy, err := failpoint.NewProxy(t.Context(), url, func() failpoint.Hook { return hook })
		testdb.Must(t, err)
		pool, err := pgxpool.New(t.Context(), proxy.URL())
		testdb.Must(t, err)
		key := idempotency.Key{Value: fmt.Sprint("o-", n)}
		_, _, first := idempotency.Once(t.Context(), pool, key, idempotency.Request{}, idempotency.Options{}, pay)
		pool.Close()
		proxy.Close()
		_, replayed, err := idempotency.Once(t.Context(), direct.Pool(), key, idempotency.Request{}, idempotency.Options{}, pay)
		if err != nil || first == nil && !replayed || replayed && first != nil && !errors.Is(first, idempotency.ErrUnknown) {
			t.Errorf("cut after round trip %d: %v, then replayed %v, %v", n, first, replayed, err)
		}
		wantEffects(t, direct, n)
		if cut = hook.trips.Load() >= hook.n; !cut && n < 8 {
			t.Errorf("there were only %d round trips", n-1)
		}
	}
}

// nth cuts the connection after the n-th round trip.
type nth struct {
	n     int64
	trips atomic.Int64
}

func (*nth) Before(*failpoint.Trip) failpoint.Fault { return failpoint.None }

func (c *nth) After(*failpoint.Trip) failpoint.Fault {
	if c.trips.Add(1) == c.n {
		return failpoint.Cut
	}
	return failpoint.None
}
