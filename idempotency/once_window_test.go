package idempotency_test

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
)

// report is meant once an hour.
func report(ctx context.Context, db idempotency.Beginner, w *work, hour, minute, second int) result[receipt] {
	this, previous := idempotency.Window(time.Date(2026, 1, 31, hour, minute, second, 0, time.UTC), time.Hour)
	var r result[receipt]
	r.Value, r.Replayed, r.Err = idempotency.Once(ctx, db, idempotency.Key{Operation: "report.v1", Value: this},
		idempotency.Options{Also: []string{previous}}, w.do)
	return r
}

func TestOnce_neighbouringWindowsAnswerForEachOther(t *testing.T) {
	t.Parallel()

	t.Run("a duplicate beyond the full hour gets the first result", func(t *testing.T) {
		t.Parallel()
		for _, sent := range [][3][3]int{
			{{10, 59, 59}, {11, 0, 1}, {10, 30, 0}},
			{{11, 0, 1}, {10, 59, 59}, {11, 30, 0}},
		} {
			db, w := testdb.Reused(t), &work{}
			for i, at := range sent {
				got := report(t.Context(), db.Pool(), w, at[0], at[1], at[2])
				if got.Err != nil || got.Value.Number != 1 || got.Replayed != (i > 0) {
					t.Errorf("at %v: %+v", at, got)
				}
			}
			wantEffects(t, db, 1)
		}
	})

	t.Run("concurrent duplicates in both windows are done once, without a deadlock", func(t *testing.T) {
		t.Parallel()
		db, w := testdb.Reused(t), &work{}
		var group errgroup.Group
		for i := range 20 {
			group.Go(func() error { return report(t.Context(), db.Pool(), w, 10+i%2, 30, i).Err })
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		wantEffects(t, db, 1)
	})
}
