package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
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

func o1() idempotency.Key { return idempotency.Key{Scope: "acme", Operation: "order.v1", Value: "o-1"} }

// onceOf calls a function for the order o-1.
func onceOf[T any](ctx context.Context, db idempotency.Beginner, fn func(context.Context, pgx.Tx) (T, error)) (r result[T]) {
	r.Value, r.Replayed, r.Err = idempotency.Once(ctx, db, o1(), idempotency.Request{}, idempotency.Options{}, fn)
	return r
}

func pay(ctx context.Context, tx pgx.Tx) (receipt, error) {
	_, err := tx.Exec(ctx, insertEffect)
	return receipt{Number: 1, Paid: math.MaxInt64, Nonce: 1}, err
}

// wantPaid checks that a call, which may be the first, has one receipt.
func wantPaid(t *testing.T, got result[receipt], replayed bool) {
	t.Helper()
	want := result[receipt]{Value: receipt{Number: 1, Paid: math.MaxInt64}, Replayed: replayed}
	testrun.Same(t, "the receipt", want, got)
}

// unreadable is written as JSON and never read.
type unreadable struct{}

func (*unreadable) UnmarshalJSON([]byte) error { return errPlanted }

func TestOnce_results(t *testing.T) {
	t.Parallel()
	db, calls := testdb.Reused(t), 0
	for n := range 2 {
		wantPaid(t, onceOf(t.Context(), db.Pool(), pay), n > 0) // the first call returns what later ones read
	}
	other := onceOf(t.Context(), db.Pool(), func(context.Context, pgx.Tx) (string, error) { return "", nil })
	if other.Err == nil || !strings.HasPrefix(other.Err.Error(), "read the stored result of order.v1: ") || !other.Replayed {
		t.Errorf("as another type: %+v", other)
	}

	db = testdb.Reused(t)
	lost := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (unreadable, error) {
		_, err := pay(ctx, tx)
		return unreadable{}, err
	})
	if !errors.Is(lost.Err, errPlanted) {
		t.Errorf("a result that no call could read: %+v", lost)
	}
	wantEffects(t, db, 0) // so the key is free
	for n := range 2 {
		got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (receipt, error) {
			calls++
			_, _ = pay(ctx, tx)
			_, _ = tx.Exec(ctx, `select 1/0`) // a refusal does not hinder it
			return receipt{Paid: 1}, fmt.Errorf("pay: %w", &idempotency.FinalError{Code: "declined", Message: "the card was declined"})
		})
		final, ok := errors.AsType[*idempotency.FinalError](got.Err)
		if !ok || final.Code != "declined" || got.Err.Error() != "the card was declined" || got.Replayed != (n > 0) || got.Value != (receipt{}) || calls != 1 {
			t.Errorf("call %d: %+v, %d calls of the function", n+1, got, calls)
		}
	}
	wantEffects(t, db, 0) // a final error undoes the writes
}

func TestOnce_failures(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"a goroutine that ends": func(context.Context, pgx.Tx) error { runtime.Goexit(); return nil },
		"an ignored refusal":    func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, `select 1/0`); return nil },
		"a rollback of its own": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"a rollback in SQL":     func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `rollback`); return err },
		"a commit of its own":   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"a removal of its own key": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `delete from idempotency_keys`)
			return err
		},
		"rows left open": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, insertEffect+` returning 1`) //nolint:sqlclosecheck // the fault
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
					_, err := pay(ctx, tx)
					if fail == nil {
						return math.Inf(1), err
					}
					return nil, errors.Join(err, fail(ctx, tx))
				})
				if got.Err == nil || errors.Is(got.Err, idempotency.ErrUnknown) {
					t.Errorf("%+v", got)
				}
			}()
			testrun.Receive(t, "the call", done)
			wantEffects(t, db, 0)
			wantPaid(t, onceOf(t.Context(), db.Pool(), pay), false)
			wantEffects(t, db, 1)
		})
	}
}

func TestOnce_inTheCallersTransaction(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, end := range []func(pgx.Tx) error{
		func(tx pgx.Tx) error { return tx.Rollback(t.Context()) },
		func(tx pgx.Tx) error { return tx.Commit(t.Context()) },
	} {
		tx, err := db.Pool().Begin(t.Context())
		testdb.Must(t, err)
		failing := func(context.Context, pgx.Tx) (receipt, error) { return receipt{}, errPlanted }
		if got := onceOf(t.Context(), tx, failing); !errors.Is(got.Err, errPlanted) {
			t.Errorf("%+v", got)
		}
		for n := range 2 {
			wantPaid(t, onceOf(t.Context(), tx, pay), n > 0)
		}
		testdb.Must(t, end(tx))
	}
	wantEffects(t, db, 1)
	wantPaid(t, onceOf(t.Context(), db.Pool(), pay), true)
}

// The session has the time-out of a minute, and a call of Once within itself is a rival.
func TestOnce_leavesTheSessionsLockTimeOutToTheWork(t *testing.T) {
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: time.Minute})
	got := onceOf(t.Context(), db.Pool(), func(ctx context.Context, tx pgx.Tx) (timeout string, err error) {
		if _, _, err := idempotency.Once(ctx, db.Pool(), o1(), idempotency.Request{}, idempotency.Options{Wait: -1}, pay); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the call within itself: %v", err)
		}
		err = tx.QueryRow(ctx, `select current_setting('lock_timeout')`).Scan(&timeout)
		return timeout, err
	})
	if got.Err != nil || got.Value != "1min" {
		t.Errorf("%+v", got)
	}
	wantEffects(t, db, 0)
}

func TestOnce_inEachModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range testdb.Modes {
		pool := testdb.PoolIn(t, testdb.URL(t), mode)
		for n := range 2 {
			wantPaid(t, onceOf(t.Context(), pool, pay), n > 0)
		}
	}
}
