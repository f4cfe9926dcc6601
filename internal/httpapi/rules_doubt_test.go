package httpapi_test

import (
	"testing"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// A commit of which nobody knows is answered 503, and the same request under the
// same key tells. It is carried out once, whichever it was.
func TestRulesACommitInDoubtIsSettledByItsKey(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		side     failpoint.Side
		replayed bool
	}{
		"that was made": {failpoint.After, true},
		"that was not":  {failpoint.Before, false},
	} {
		for i, kind := range []string{"a charge", "a cancellation", "a refund"} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				address := testdb.URL(t)
				direct := serveOn(t, open(t, address, postgres.Options{}), func(*httpapi.Config) {})
				r := direct.routes(t)[i]
				before := rows(t, direct.db)
				proxy := failpoint.StartCutter(t, address)
				cut := serveOn(t, open(t, proxy.URL(), postgres.Options{MaxConns: 1}), func(*httpapi.Config) {})
				proxy.ArmLast(test.side, 3) // nothing else has so many statements
				a := cut.send(t, r.under("key"))
				if proxy.Cuts() != 1 {
					t.Fatalf("%d connections were cut: status %d: %s", proxy.Cuts(), a.status, a.body)
				}
				wantProblem(t, a, "/problems/unavailable")

				again := direct.accepted(t, r.under("key"))
				if replayed := again.header.Get("Idempotent-Replayed") == "true"; replayed != test.replayed {
					t.Errorf("replayed %t, want %t: %s", replayed, test.replayed, again.body)
				}
				wantRows(t, direct.db, before, r.adds)
			})
		}
	}
}
