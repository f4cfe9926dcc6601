package idempotency_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
)

func TestReceive_refusesWhatItCannotUse(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, key := range []idempotency.Key{{}, keyOf(strings.Repeat("k", 256)), keyOf(" a"), {Scope: "\xff", Value: "k"}} {
		if _, err := (idempotency.Receiver{DB: db}).Receive(t.Context(), key, theRequest(), effect); !errors.Is(err, idempotency.ErrInvalid) {
			t.Errorf("%q: %v", key, err)
		}
	}
	if _, err := (idempotency.Receiver{}).Receive(t.Context(), theKey(), theRequest(), effect); err == nil {
		t.Error("a nil store")
	}
	_, err := (idempotency.Receiver{DB: testdb.Connect(t, testdb.Empty(t))}).Receive(t.Context(), theKey(), theRequest(), effect)
	if err == nil || errors.Is(err, idempotency.ErrUnknown) || !strings.Contains(err.Error(), "idempotency_keys") {
		t.Errorf("a missing table: %v", err)
	}
	wantEffects(t, db, 0)
}
