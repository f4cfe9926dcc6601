package ledger_test

import (
	"testing"

	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
