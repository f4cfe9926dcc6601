package idempotency_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// report is meant once an hour.
type report struct {
	Shop string    `json:"shop"`
	At   time.Time `json:"at"`
}

func (r report) key(window string) string {
	return idempotency.NaturalKey{Parts: []string{r.Shop, window}, Operation: "report", Version: 1}.String()
}

// reporting does a report once an hour, also beyond the full hour.
func reporting(db *postgres.DB, calls *atomic.Int64) idempotency.Once[report, receipt] {
	return idempotency.Once[report, receipt]{
		Receiver: idempotency.Receiver{DB: db}, Scope: "acme", Operation: "report.v1",
		Same: func(r report) any { return r.Shop },
		Key: func(r report) (string, error) {
			this, _ := idempotency.Window(r.At, time.Hour)
			return r.key(this), nil
		},
		Also: func(r report) ([]string, error) {
			_, previous := idempotency.Window(r.At, time.Hour)
			return []string{r.key(previous)}, nil
		},
		Work: func(_ context.Context, b *pgx.Batch, _ report) (receipt, error) {
			b.Queue(insertEffect)
			return receipt{Number: calls.Add(1)}, nil
		},
	}
}

func reportAt(hour, minute, second int) report {
	return report{Shop: "acme", At: time.Date(2026, 1, 31, hour, minute, second, 0, time.UTC)}
}

func TestNeighbouringWindowsAnswerForEachOther(t *testing.T) {
	t.Parallel()

	t.Run("a duplicate beyond the full hour gets the first result", func(t *testing.T) {
		t.Parallel()
		for _, sent := range [][]report{
			{reportAt(10, 59, 59), reportAt(11, 0, 1), reportAt(10, 30, 0)},
			{reportAt(11, 0, 1), reportAt(10, 59, 59), reportAt(11, 30, 0)},
		} {
			db := pgtest.Reused(t)
			var calls atomic.Int64
			once := reporting(db, &calls)
			for i, r := range sent {
				if got := do(t, once, r); got.Duplicate != (i > 0) || got.Value.Number != 1 {
					t.Errorf("at %v: %+v", r.At, got)
				}
			}
			if calls.Load() != 1 {
				t.Errorf("%d calls", calls.Load())
			}
			wantEffects(t, db, 1)
		}
	})

	t.Run("so of three hours the second has none of its own", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := reporting(db, new(atomic.Int64))
		for i, r := range []report{reportAt(10, 0, 0), reportAt(11, 0, 0), reportAt(12, 0, 0)} {
			if got := do(t, once, r); got.Duplicate != (i == 1) {
				t.Errorf("%v: %+v", r.At, got)
			}
		}
		wantEffects(t, db, 2)
	})

	t.Run("another input in the window before is another request", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := reporting(db, new(atomic.Int64))
		once.Same = func(r report) any { return r.At.Minute() }
		do(t, once, reportAt(10, 59, 59))
		if got, err := once.Do(t.Context(), reportAt(11, 0, 1)); !errors.Is(err, idempotency.ErrReused) || got.Duplicate {
			t.Errorf("%+v, %v", got, err)
		}
		wantEffects(t, db, 1)
	})

	t.Run("at once too, and in one call", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := reporting(db, new(atomic.Int64))
		in := make([]report, 20)
		for i := range in {
			in[i] = reportAt(10+i%2, 30, i)
		}
		if done, known, failed := tally(once.DoAll(t.Context(), in)); done != 1 || known != 19 || failed != 0 {
			t.Errorf("%d done, %d known, %d failed", done, known, failed)
		}
		if done, known, failed := tally(once.DoAll(t.Context(), in)); done != 0 || known != 20 || failed != 0 {
			t.Errorf("again: %d done, %d known, %d failed", done, known, failed)
		}
		wantEffects(t, db, 1)
	})

	t.Run("and keys that cross each other come to an end", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		once := reporting(db, new(atomic.Int64))
		once.Key = func(r report) (string, error) { return r.Shop, nil }
		once.Also = func(r report) ([]string, error) { return []string{map[string]string{"a": "b", "b": "a"}[r.Shop]}, nil }
		once.Same = func(report) any { return nil }
		var work errgroup.Group
		for i := range 16 {
			work.Go(func() error {
				_, err := once.Do(t.Context(), report{Shop: string(rune('a' + i%2))})
				return err
			})
		}
		if err := work.Wait(); err != nil {
			t.Error(err)
		}
		wantEffects(t, db, 1)
	})

	t.Run("a further key that is none is refused", func(t *testing.T) {
		t.Parallel()
		once := reporting(nil, new(atomic.Int64))
		once.Also = func(report) ([]string, error) { return []string{"k", ""}, nil }
		if _, err := once.Do(t.Context(), reportAt(10, 0, 0)); !errors.Is(err, idempotency.ErrInvalid) {
			t.Errorf("the error is %v", err)
		}
		once.Also = func(report) ([]string, error) { return nil, idempotency.ErrUnstable }
		if _, err := once.Do(t.Context(), reportAt(10, 0, 0)); !errors.Is(err, idempotency.ErrUnstable) {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestReceiveUnderFurtherKeys(t *testing.T) {
	t.Parallel()

	t.Run("what was found under one is not kept under another", func(t *testing.T) {
		t.Parallel()
		cache := &remembers{}
		r := idempotency.Receiver{DB: pgtest.Reused(t), Cache: cache}
		first := receive(t, r, effect)
		cache.kept = nil
		further := theRequest()
		further.Also = []string{theKey().Value}
		got, err := r.Receive(t.Context(), keyed("k2"), further, effect)
		first.Replayed = true
		if diff := cmp.Diff(first, got); diff != "" || err != nil || len(cache.kept) != 0 {
			t.Errorf("kept %v, %v, outcome (-want +got):\n%s", cache.kept, err, diff)
		}
	})

	t.Run("a key that the work itself claims, and that is taken, is a refusal of its own", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		if err := claim(t, db, keyed("foreign"), theAnswer(), inAnHour()); err != nil {
			t.Fatal(err)
		}
		calls := 0
		_, err := idempotency.Receiver{DB: db}.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			calls++
			idempotency.Claim(b, keyed("foreign"), theRequest(), theAnswer(), now.Add(time.Hour))
			return effect(ctx, b, now)
		})
		if !idempotency.IsTaken(err) || errors.Is(err, idempotency.ErrUnavailable) || calls != 2 {
			t.Errorf("%d calls, %v", calls, err)
		}
		wantEffects(t, db, 1)
		if _, found := look(t, db, theKey()); found {
			t.Error("the key is taken")
		}
	})
}
