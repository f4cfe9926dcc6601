package idempotency_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestMain(m *testing.M) {
	pgtest.Overlap()
	goleak.VerifyTestMain(m)
}
