package idempotency_test

import (
	"testing"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
)

func wantExpired(t *testing.T, db *postgres.DB, limit, want int) {
	t.Helper()
	if got, err := idempotency.ExpireKeys(t.Context(), db, limit); err != nil || got != want {
		t.Errorf("%d expired, want %d: %v", got, want, err)
	}
}
