package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
)

func TestReceive_ofWorkThatClaimsKeys(t *testing.T) {
	t.Parallel()

	t.Run("a taken key that the work itself claims is a refusal", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		if err := claim(t, db, keyOf("foreign"), theAnswer(), inAnHour()); err != nil {
			t.Fatal(err)
		}
		calls := 0
		_, err := idempotency.Receiver{DB: db}.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			calls++
			idempotency.Claim(b, keyOf("foreign"), theRequest(), theAnswer(), now.Add(time.Hour))
			return effect(ctx, b, now)
		})
		if !idempotency.IsTaken(err) || errors.Is(err, idempotency.ErrUnknown) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
		wantEffects(t, db, 1)
		if _, found := readKey(t, db, theKey()); found {
			t.Error("the key is taken")
		}
	})
}
