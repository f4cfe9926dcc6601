package ledger_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/ledger"
)

// What a page costs must not grow with the ledger, whatever the planner believes
// of it: restored tables were never analyzed.
func TestAPageCostsWhatItsEventsCost(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not run in short mode: it writes 20,000 charges")
	}
	const grown, charges = 20_000, 250
	db := pgtest.Open(t)
	fill(t, db, grown)
	b := &pgx.Batch{}
	for i := range charges {
		if _, err := ledger.Append(b, ledger.New(fmt.Sprintf("ch_new_%03d", i)), because("a"), opened("acme", 1000, "EUR")); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	before := touched(t, db)
	if n := caughtUp(t, db); n != charges {
		t.Errorf("%d events were folded, want %d", n, charges)
	}
	if n := settled(t, db, before); n > grown {
		t.Errorf("folding %d events read %d rows and entries, beside %d older events", charges, n, grown)
	} else {
		t.Logf("folding %d events read %d rows and entries", charges, n)
	}
}
