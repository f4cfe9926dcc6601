package idempotency_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/cutproxy"
	"github.com/payonce/payonce/internal/postgres/pgtest"
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

// ordering is a work with one effect; calls counts how often it was called.
func ordering(db *postgres.DB, calls *atomic.Int64) idempotency.Once[order, receipt] {
	return idempotency.Once[order, receipt]{
		Receiver:  idempotency.Receiver{DB: db, Retention: time.Hour},
		Scope:     "acme",
		Operation: "order.v1",
		Work: func(_ context.Context, b *pgx.Batch, o order) (receipt, error) {
			n := calls.Add(1)
			b.Queue(insertEffect)
			return receipt{Number: n, Paid: o.Amount, Nonce: 1}, nil
		},
	}
}

func byID(o order) (string, error) {
	k := idempotency.NaturalKey{Parts: []string{o.ID}, Operation: "order", Version: 1}
	return k.String(), k.Validate()
}

func do[In, Out any](t *testing.T, o idempotency.Once[In, Out], in In) idempotency.Result[Out] {
	t.Helper()
	result, err := o.Do(t.Context(), in)
	if err != nil || result.Err != nil {
		t.Fatalf("%v, %v", err, result.Err)
	}
	return result
}

func TestOnce(t *testing.T) {
	t.Parallel()

	t.Run("the work is done, and its result is returned ever after", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		var calls atomic.Int64
		once := ordering(db, &calls)
		first := do(t, once, order{ID: "o-1", Amount: math.MaxInt64})
		want := idempotency.Result[receipt]{Key: first.Key, Value: receipt{Number: 1, Paid: math.MaxInt64}}
		if diff := cmp.Diff(want, first); diff != "" {
			t.Errorf("first (-want +got):\n%s", diff)
		}
		want.Duplicate = true
		for range 3 {
			if diff := cmp.Diff(want, do(t, once, order{ID: "o-1", Amount: math.MaxInt64})); diff != "" {
				t.Errorf("again (-want +got):\n%s", diff)
			}
		}
		if calls.Load() != 1 {
			t.Errorf("%d calls", calls.Load())
		}
		wantEffects(t, db, 1)
	})

	t.Run("without a key function another input is other work", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		for i, in := range []order{{ID: "o-1", Amount: 1}, {ID: "o-1", Amount: 2}, {ID: "o-2", Amount: 1}} {
			if got := do(t, once, in); got.Duplicate || got.Value.Number != int64(i+1) {
				t.Errorf("%+v: %+v", in, got)
			}
		}
		wantEffects(t, db, 3)
	})

	t.Run("another operation or scope is another place", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Key = byID
		other, foreign := once, once
		other.Operation, foreign.Scope = "order.v2", "globex"
		for _, once := range []idempotency.Once[order, receipt]{once, other, foreign} {
			if got := do(t, once, order{ID: "o-1"}); got.Duplicate || got.Key != "o-1:order:v1" {
				t.Errorf("%+v", got)
			}
		}
		wantEffects(t, db, 3)
	})

	t.Run("another input under the same key is refused, and told where it differs", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Key = byID
		do(t, once, order{ID: "o-1", Amount: 1})
		got, err := once.Do(t.Context(), order{ID: "o-1", Amount: 2})
		reused, ok := errors.AsType[*idempotency.ReusedError](err)
		if !ok || !cmp.Equal(reused.Pointers, []string{"/amount"}) || got.Duplicate || got.Value != (receipt{}) {
			t.Errorf("%+v, %v", got, err)
		}
		wantEffects(t, db, 1)
	})

	t.Run("unless what differs was said not to matter", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Same = func(o order) any { return []any{o.ID, o.Amount} }
		for i, at := range []string{"10:00", "10:01"} {
			if got := do(t, once, order{ID: "o-1", Amount: 1, SentAt: at}); got.Duplicate != (i > 0) {
				t.Errorf("at %s: %+v", at, got)
			}
		}
		wantEffects(t, db, 1)
	})

	t.Run("a failure stores nothing and can be tried again", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		work, planted, broken := once.Work, errors.New("planted"), true
		once.Work = func(ctx context.Context, b *pgx.Batch, o order) (receipt, error) {
			out, err := work(ctx, b, o)
			if broken {
				err = planted
			}
			return out, err
		}
		if got, err := once.Do(t.Context(), order{ID: "o-1"}); !errors.Is(err, planted) || got.Value != (receipt{}) {
			t.Errorf("%+v, %v", got, err)
		}
		wantEffects(t, db, 0)
		broken = false
		if got := do(t, once, order{ID: "o-1"}); got.Duplicate {
			t.Errorf("%+v", got)
		}
		wantEffects(t, db, 1)
	})

	t.Run("a panic stores nothing either", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Work = func(_ context.Context, b *pgx.Batch, _ order) (receipt, error) {
			b.Queue(insertEffect)
			panic("planted")
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("it was swallowed")
				}
			}()
			_, _ = once.Do(t.Context(), order{ID: "o-1"})
		}()
		wantEffects(t, db, 0)
		do(t, ordering(db, new(atomic.Int64)), order{ID: "o-1"})
		wantEffects(t, db, 1)
	})

	t.Run("a result that is not kept is not returned, and the work is not done again", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Forget = true
		if got := do(t, once, order{ID: "o-1", Amount: 5}); got.Duplicate || got.Value.Paid != 5 {
			t.Errorf("%+v", got)
		}
		if got := do(t, once, order{ID: "o-1", Amount: 5}); !got.Duplicate || got.Value != (receipt{}) {
			t.Errorf("again %+v", got)
		}
		wantEffects(t, db, 1)
		var kept int
		if err := db.QueryRow(t.Context(), `select coalesce(length(request), 0) + length(body) from idempotency_keys`).Scan(&kept); err != nil || kept != 0 {
			t.Errorf("%d bytes are kept: %v", kept, err)
		}
	})

	t.Run("after its time a result is gone, and the work is still not done again", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := ordering(db, new(atomic.Int64))
		once.Receiver.Retention = time.Nanosecond
		do(t, once, order{ID: "o-1"})
		gone := func() {
			t.Helper()
			if got, err := once.Do(t.Context(), order{ID: "o-1"}); !errors.Is(err, idempotency.ErrExpired) || got.Duplicate {
				t.Errorf("%+v, %v", got, err)
			}
		}
		gone()
		wantSwept(t, db, 10, 1)
		gone()
		wantEffects(t, db, 1)
	})

	t.Run("of sixty-four at once one does it, and all get its result", func(t *testing.T) {
		t.Parallel()
		db := open(t, pgtest.URL(t), postgres.Options{MaxConns: 6})
		var calls, first atomic.Int64
		once := ordering(db, &calls)
		var work errgroup.Group
		numbers := make([]int64, 64)
		for i := range numbers {
			work.Go(func() error {
				got, err := once.Do(t.Context(), order{ID: "o-1"})
				if !got.Duplicate {
					first.Add(1)
				}
				numbers[i] = got.Value.Number
				return err
			})
		}
		if err := work.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, n := range numbers {
			if n != numbers[0] {
				t.Errorf("the numbers are %v", numbers)
				break
			}
		}
		if first.Load() != 1 {
			t.Errorf("%d were the first", first.Load())
		}
		wantEffects(t, db, 1)
	})

	t.Run("one that is under way is not done beside", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		underWay(t, db)
		var calls atomic.Int64
		once := ordering(db, &calls)
		once.Operation = theKey().Operation
		once.Key = func(order) (string, error) { return theKey().Value, nil }
		once.Receiver.Wait = 20 * time.Millisecond
		if got, err := once.Do(t.Context(), order{ID: "o-1"}); !errors.Is(err, idempotency.ErrInFlight) || got.Duplicate {
			t.Errorf("%+v, %v", got, err)
		}
		wantEffects(t, db, 0)
	})

	t.Run("a commit that nobody heard of is found done", func(t *testing.T) {
		t.Parallel()
		url := pgtest.URL(t)
		proxy := cutproxy.Start(t, url)
		once := ordering(open(t, proxy.URL(), postgres.Options{}), new(atomic.Int64))
		proxy.Arm(cutproxy.After, 2)
		if got := do(t, once, order{ID: "o-1", Amount: 5}); !got.Duplicate || got.Value.Paid != 5 || proxy.Cuts() != 1 {
			t.Errorf("%+v after %d cuts", got, proxy.Cuts())
		}
		wantEffects(t, open(t, url, postgres.Options{}), 1)
	})
}

func TestOnceRefusesWhatItCannotKeep(t *testing.T) {
	t.Parallel()
	const long = "beyond 255 characters"
	db := pgtest.Reused(t)
	for _, test := range []struct {
		name  string
		once  func(idempotency.Once[float64, float64]) idempotency.Once[float64, float64]
		in    float64
		wants string
	}{
		{"an input that is no JSON", func(o idempotency.Once[float64, float64]) idempotency.Once[float64, float64] { return o }, math.NaN(), "encode an input of number.v1: not one JSON value with one meaning: json: unsupported value: NaN"},
		{"a result that is no JSON", func(o idempotency.Once[float64, float64]) idempotency.Once[float64, float64] {
			o.Work = func(_ context.Context, b *pgx.Batch, _ float64) (float64, error) {
				b.Queue(insertEffect)
				return math.Inf(1), nil
			}
			return o
		}, 1, "encode a result of number.v1: json: unsupported value: +Inf"},
		{"a key that is none", func(o idempotency.Once[float64, float64]) idempotency.Once[float64, float64] {
			o.Key = func(float64) (string, error) { return strings.Repeat(long, 20), nil }
			return o
		}, 1, "derive a key of number.v1: the idempotency key is not a key"},
		{"an input without a key", func(o idempotency.Once[float64, float64]) idempotency.Once[float64, float64] {
			o.Key = func(float64) (string, error) { return "", idempotency.ErrUnstable }
			return o
		}, 1, "derive a key of number.v1: no key can be made of this"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			once := test.once(idempotency.Once[float64, float64]{
				Receiver: idempotency.Receiver{DB: db}, Scope: t.Name(), Operation: "number.v1",
				Work: func(_ context.Context, b *pgx.Batch, in float64) (float64, error) {
					b.Queue(insertEffect)
					return in, nil
				},
			})
			if _, err := once.Do(t.Context(), test.in); err == nil || err.Error() != test.wants {
				t.Errorf("the error is %v, want %s", err, test.wants)
			}
			wantEffects(t, db, 0)
		})
	}

	t.Run("a result that another version wrote is an error, not an empty one", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		numbers := idempotency.Once[string, float64]{
			Receiver: idempotency.Receiver{DB: db}, Operation: "v1",
			Work: func(context.Context, *pgx.Batch, string) (float64, error) { return 1, nil },
		}
		texts := idempotency.Once[string, string]{Receiver: numbers.Receiver, Operation: "v1"}
		do(t, numbers, "a")
		got, err := texts.Do(t.Context(), "a")
		if err == nil || !strings.HasPrefix(err.Error(), "read the stored result of v1: ") || !got.Duplicate {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
