package ledger_test

import (
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// The charges of these tests, and how they are stored.
var (
	requested, paid, attempt, cause = testdb.Requested, testdb.Paid, testdb.Attempt, testdb.Cause
	commit, appended, exec          = testdb.Append, testdb.Appended, testdb.Statements
)

// load loads the one stream of most tests.
func load(t *testing.T, q postgres.Querier) ledger.Stream {
	t.Helper()
	s, err := ledger.Load(t.Context(), q, "ch_1")
	testdb.Must(t, err)
	return s
}
