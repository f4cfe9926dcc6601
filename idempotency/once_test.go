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
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

type order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"`
	SentAt string `json:"sent_at,omitempty"`
}

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

// work is a function with one effect, and counts its calls.
type work struct{ calls atomic.Int64 }

func (w *work) do(ctx context.Context, tx pgx.Tx) (receipt, error) {
	_, err := tx.Exec(ctx, insertEffect)
	return receipt{Number: w.calls.Add(1), Nonce: 1}, err
}

func byID(o order) (idempotency.Key, idempotency.Options) {
	key, request, err := idempotency.ByContent("acme", "order.v1", o)
	if err != nil {
		panic(err)
	}
	key.Value = idempotency.NaturalKey{Parts: []string{o.ID}, Operation: "order", Version: 1}.String()
	return key, idempotency.Options{Request: request}
}

func once[T any](ctx context.Context, db idempotency.Beginner, o order, fn func(context.Context, pgx.Tx) (T, error)) (r result[T]) {
	key, options := byID(o)
	r.Value, r.Replayed, r.Err = idempotency.Once(ctx, db, key, options, fn)
	return r
}

// unreadable is written as JSON and never read.
type unreadable struct{}

func (*unreadable) UnmarshalJSON([]byte) error { return errors.New("planted") }

func TestOnce(t *testing.T) {
	t.Parallel()

	t.Run("the function is called once, and its result is returned each time", func(t *testing.T) {
		t.Parallel()
		db, w := testdb.Reused(t), &work{}
		for call := range 4 {
			got := once(t.Context(), db.Pool(), order{ID: "o-1"}, func(ctx context.Context, tx pgx.Tx) (receipt, error) {
				r, err := w.do(ctx, tx)
				r.Paid = math.MaxInt64
				return r, err
			})
			want := result[receipt]{Value: receipt{Number: 1, Paid: math.MaxInt64}, Replayed: call > 0}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("call %d (-want +got):\n%s", call+1, diff)
			}
		}
		if calls := w.calls.Load(); calls != 1 {
			t.Errorf("%d calls", calls)
		}
		wantEffects(t, db, 1)
	})

	t.Run("a key in another scope or operation is another key", func(t *testing.T) {
		t.Parallel()
		db, w := testdb.Reused(t), &work{}
		for _, key := range []idempotency.Key{{Value: "k"}, {Scope: "a", Value: "k"}, {Operation: "a", Value: "k"}} {
			if _, replayed, err := idempotency.Once(t.Context(), db.Pool(), key, idempotency.Options{}, w.do); replayed || err != nil {
				t.Errorf("%+v: replayed %v, %v", key, replayed, err)
			}
		}
	})

	t.Run("another request is refused with the members that differ", func(t *testing.T) {
		t.Parallel()
		db, w := testdb.Reused(t), &work{}
		once(t.Context(), db.Pool(), order{ID: "o-1", Amount: 1}, w.do)
		got := once(t.Context(), db.Pool(), order{ID: "o-1", Amount: 2}, w.do)
		if reused, ok := errors.AsType[*idempotency.ReusedError](got.Err); !ok || !cmp.Equal(reused.Pointers, []string{"/amount"}) {
			t.Errorf("%+v", got)
		}
		wantEffects(t, db, 1)
	})

	t.Run("a result that another version wrote is an error, not an empty one", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		once(t.Context(), db.Pool(), order{ID: "o-1"}, new(work).do)
		got := once(t.Context(), db.Pool(), order{ID: "o-1"}, func(context.Context, pgx.Tx) (string, error) { return "", nil })
		if got.Err == nil || !strings.HasPrefix(got.Err.Error(), "read the stored result of order.v1: ") || !got.Replayed {
			t.Errorf("%+v", got)
		}
	})

	t.Run("a result that no call could read is not stored", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		got := once(t.Context(), db.Pool(), order{ID: "o-1"}, func(ctx context.Context, tx pgx.Tx) (unreadable, error) {
			_, err := tx.Exec(ctx, insertEffect)
			return unreadable{}, err
		})
		if got.Err == nil || !strings.Contains(got.Err.Error(), "planted") {
			t.Errorf("%+v", got)
		}
		wantEffects(t, db, 0)
	})

	t.Run("each call reports its result", func(t *testing.T) {
		t.Parallel()
		db, got := testdb.Reused(t), []idempotency.CommitResult{}
		key, o := byID(order{ID: "o-1"})
		o.OnCommit = func(c idempotency.CommitResult) { got = append(got, c) }
		planted := errors.New("planted")
		for _, fn := range []func(context.Context, pgx.Tx) (receipt, error){
			func(context.Context, pgx.Tx) (receipt, error) { return receipt{}, planted },
			func(context.Context, pgx.Tx) (receipt, error) { panic(planted) }, new(work).do, new(work).do,
		} {
			func() {
				defer func() { _ = recover() }()
				_, _, _ = idempotency.Once(t.Context(), db.Pool(), key, o, fn)
			}()
		}
		testrun.Same(t, "results", []idempotency.CommitResult{idempotency.CommitFailed, idempotency.CommitFailed, idempotency.CommitMade, idempotency.CommitTaken}, got)
	})
}

func leaveRowsOpen(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Query(ctx, insertEffect+` returning 1`) //nolint:sqlclosecheck // the fault
	return err
}

func TestOnce_failures(t *testing.T) {
	t.Parallel()
	planted := errors.New("planted")
	for name, test := range map[string]struct {
		fail    func(ctx context.Context, tx pgx.Tx) error
		unknown bool
	}{
		"an error":                 {func(context.Context, pgx.Tx) error { return planted }, false},
		"a panic":                  {func(context.Context, pgx.Tx) error { panic(planted) }, false},
		"a goroutine that ends":    {func(context.Context, pgx.Tx) error { runtime.Goexit(); return nil }, false},
		"a refused statement":      {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `select 1/0`); return err }, false},
		"an ignored refusal":       {func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, `select 1/0`); return nil }, false},
		"a rollback of its own":    {func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, false},
		"a rollback in SQL":        {func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `rollback`); return err }, false},
		"a commit of its own":      {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, false},
		"rows left open":           {leaveRowsOpen, false},
		"a lost connection":        {func(ctx context.Context, tx pgx.Tx) error { return tx.Conn().Close(ctx) }, true},
		"a result that is no JSON": {nil, false},
	} {
		t.Run(name+" undoes the writes and leaves the key free", func(t *testing.T) {
			t.Parallel()
			db, w, done := testdb.Reused(t), &work{}, make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				got := once(t.Context(), db.Pool(), order{ID: "o-1"}, func(ctx context.Context, tx pgx.Tx) (any, error) {
					if _, err := w.do(ctx, tx); err != nil {
						return nil, err
					}
					if test.fail == nil {
						return math.Inf(1), nil
					}
					return nil, test.fail(ctx, tx)
				})
				if got.Err == nil || errors.Is(got.Err, idempotency.ErrUnknown) != test.unknown {
					t.Errorf("%+v", got)
				}
			}()
			await.Receive(t, "the call", done)
			wantEffects(t, db, 0)
			if got := once(t.Context(), db.Pool(), order{ID: "o-1"}, w.do); got.Err != nil || got.Replayed {
				t.Errorf("then %+v", got)
			}
			wantEffects(t, db, 1)
		})
	}

	t.Run("a context that ends in the middle undoes the writes and leaves the key free", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		ctx, cancel := context.WithCancel(t.Context())
		got := once(ctx, db.Pool(), order{ID: "o-1"}, func(ctx context.Context, tx pgx.Tx) (receipt, error) {
			if _, err := tx.Exec(ctx, insertEffect); err != nil {
				return receipt{}, err
			}
			cancel()
			_, err := tx.Exec(ctx, insertEffect)
			return receipt{}, err
		})
		if !errors.Is(got.Err, context.Canceled) {
			t.Errorf("%+v", got)
		}
		if got := once(ctx, db.Pool(), order{ID: "o-1"}, new(work).do); !errors.Is(got.Err, idempotency.ErrUnknown) || !errors.Is(got.Err, context.Canceled) {
			t.Errorf("with a context that has ended: %+v", got)
		}
		if got := once(t.Context(), db.Pool(), order{ID: "o-1"}, new(work).do); got.Err != nil || got.Replayed {
			t.Errorf("then %+v", got)
		}
		wantEffects(t, db, 1)
	})

	t.Run("a final error undoes the writes, and is the outcome of the key", func(t *testing.T) {
		t.Parallel()
		db, calls := testdb.Reused(t), 0
		for call := range 2 {
			got := once(t.Context(), db.Pool(), order{ID: "o-1"}, func(ctx context.Context, tx pgx.Tx) (receipt, error) {
				calls++
				_, _ = tx.Exec(ctx, insertEffect)
				_, _ = tx.Exec(ctx, `select 1/0`) // a refusal does not hinder it
				return receipt{Paid: 1}, fmt.Errorf("pay: %w", &idempotency.FinalError{Code: "declined", Message: "the card was declined"})
			})
			final, ok := errors.AsType[*idempotency.FinalError](got.Err)
			if !ok || final.Code != "declined" || got.Err.Error() != "the card was declined" || got.Replayed != (call > 0) || got.Value != (receipt{}) {
				t.Errorf("call %d: %+v", call+1, got)
			}
		}
		if calls != 1 {
			t.Errorf("%d calls", calls)
		}
		wantEffects(t, db, 0)
	})

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

func TestOnce_refusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	other, long := testdb.Reused(t).Pool(), strings.Repeat("k", 256)
	bare, err := pgxpool.New(t.Context(), testdb.Empty(t))
	testdb.Must(t, err)
	t.Cleanup(bare.Close)
	wrong, err := pgxpool.New(t.Context(), testdb.Empty(t))
	testdb.Must(t, err)
	t.Cleanup(wrong.Close)
	testdb.Exec(t, wrong, `create table idempotency_keys (scope text, operation text, key text primary key)`)
	aborted, ended := testdb.Begin(t, other, `select 1`), testdb.Begin(t, other, `select 1`)
	_, _ = aborted.Exec(t.Context(), `select 1/0`)
	testdb.Must(t, ended.Rollback(t.Context()))
	for _, test := range []struct {
		name string
		db   idempotency.Beginner
		key  idempotency.Key
		says string
	}{
		{"no database", nil, idempotency.Key{Value: "k"}, "the database is nil"},
		{"a nil pool", (*pgxpool.Pool)(nil), idempotency.Key{Value: "k"}, "the database is nil"},
		{"no key", other, idempotency.Key{}, idempotency.ErrInvalid.Error()},
		{"a long key", other, idempotency.Key{Value: long}, idempotency.ErrInvalid.Error()},
		{"a long scope", other, idempotency.Key{Value: "k", Scope: long}, idempotency.ErrInvalid.Error()},
		{"a scope that is not UTF-8", other, idempotency.Key{Value: "k", Scope: "\xff"}, idempotency.ErrInvalid.Error()},
		{"a scope with a zero byte", other, idempotency.Key{Value: "k", Scope: "a\x00"}, idempotency.ErrInvalid.Error()},
		{"an aborted transaction", aborted, idempotency.Key{Value: "k"}, "current transaction is aborted"},
		{"an ended transaction", ended, idempotency.Key{Value: "k"}, pgx.ErrTxClosed.Error()},
		{"a missing table", bare, idempotency.Key{Value: "k"}, `relation "idempotency_keys" does not exist`},
		{"another table of the name", wrong, idempotency.Key{Value: "k"}, `does not exist (SQLSTATE 42703)`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := &work{}
			_, _, err := idempotency.Once(t.Context(), test.db, test.key, idempotency.Options{}, w.do)
			if err == nil || !strings.Contains(err.Error(), test.says) || errors.Is(err, idempotency.ErrUnknown) || w.calls.Load() != 0 {
				t.Errorf("%d calls, %v", w.calls.Load(), err)
			}
		})
	}
}

func TestOnce_inTheCallersTransaction(t *testing.T) {
	t.Parallel()
	db, w := testdb.Reused(t), &work{}
	for _, commits := range []bool{false, true} {
		tx, err := db.Pool().Begin(t.Context())
		testdb.Must(t, err)
		for i := range 2 {
			if got := once(t.Context(), tx, order{ID: "o-1"}, w.do); got.Err != nil || got.Replayed != (i > 0) {
				t.Errorf("call %d: %+v", i+1, got)
			}
		}
		planted := errors.New("planted")
		if got := once(t.Context(), tx, order{ID: "o-2"}, func(context.Context, pgx.Tx) (receipt, error) { return receipt{}, planted }); !errors.Is(got.Err, planted) {
			t.Errorf("%+v", got)
		}
		end := map[bool]func(context.Context) error{true: tx.Commit, false: tx.Rollback}[commits]
		testdb.Must(t, end(t.Context()))
	}
	wantEffects(t, db, 1)
	if got := once(t.Context(), db.Pool(), order{ID: "o-1"}, w.do); got.Err != nil || !got.Replayed {
		t.Errorf("%+v", got)
	}
}

func TestOnce_inNoMoreSlotsThanThereAre(t *testing.T) {
	t.Parallel()
	pool := testdb.Reused(t).Pool()
	slots, begun, end := make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	call := func(ctx context.Context, id string, fn func()) error {
		key, options := byID(order{ID: id})
		options.Slots = slots
		_, _, err := idempotency.Once(ctx, pool, key, options, func(context.Context, pgx.Tx) (int, error) { fn(); return 1, nil })
		return err
	}
	first := make(chan error, 1)
	go func() { first <- call(t.Context(), "first", func() { close(begun); <-end }) }()
	await.Receive(t, "the first call", begun)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := call(ctx, "second", func() { t.Error("a second call is carried out") }); !errors.Is(err, idempotency.ErrUnknown) {
		t.Errorf("the error is %v, want ErrUnknown", err)
	}
	close(end)
	testdb.Must(t, await.Receive(t, "the end of the first call", first))
	testdb.Must(t, call(t.Context(), "second", func() {}))
}
