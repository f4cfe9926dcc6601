package worker_test

import (
	"testing"

	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// Of a router that is stopped before it runs Watermill leaves a goroutine behind, so
// nobody looks for those here.
func TestMain(m *testing.M) {
	pgtest.Overlap()
	m.Run()
}
