package audit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/audit"
)

// TestCompareBooks_readsTheProvidersMinorUnits: the books of the outside are in the
// provider's minor units, the ledger is in those of ISO 4217.
func TestCompareBooks_readsTheProvidersMinorUnits(t *testing.T) {
	t.Parallel()
	for code, factor := range map[string]struct{ times, by int64 }{"ISK": {100, 1}, "UGX": {100, 1}, "MGA": {1, 100}, "KWD": {1, 1}} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(fmt.Sprintf(`
alter table ledger_events disable trigger ledger_events_append_only;
update ledger_events set data = jsonb_set(data, '{currency}', '"%s"') where type = 'charge.requested.v1'`, code))
			compare := func(b audit.Books) map[string]bool {
				t.Helper()
				checks, err := audit.CompareBooks(t.Context(), w.db, b)
				if err != nil {
					t.Fatal(err)
				}
				return violated(checks)
			}
			b := booked(w)
			for i := range b.Captures {
				b.Captures[i].Amount = b.Captures[i].Amount * factor.times / factor.by
				b.Captures[i].Currency = strings.ToLower(code)
			}
			b.Refunds[0].Amount = b.Refunds[0].Amount * factor.times / factor.by
			if got := compare(b); len(got) != 0 {
				t.Errorf("violated: %v", got)
			}
			b.Captures[0].Amount *= 100
			b.Refunds[0].Amount *= 100
			if got := compare(b); len(got) != 2 {
				t.Errorf("100 times the amount moved, twice, and violated is %v", got)
			}
		})
	}
}
