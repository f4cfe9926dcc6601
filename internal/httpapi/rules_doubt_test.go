package httpapi_test

import (
	"net/http"
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

func TestRulesNothingIsAnsweredWithoutTheStore(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serve(t)
	routes, reads := w.routes(t), w.reads(t)
	dropStore(t, w)
	for _, r := range routes {
		t.Run(r.name, func(t *testing.T) {
			for _, key := range []string{"new", "a-captured-charge"} {
				wantProblem(t, w.send(t, r.under(key)), "/problems/unavailable")
			}
		})
	}
	for name, path := range reads {
		if path == "/healthz" {
			continue
		}
		t.Run("GET "+name, func(t *testing.T) {
			wantProblem(t, w.send(t, get(path)), "/problems/unavailable")
			if a := w.send(t, get(path).like(http.MethodHead)); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1" {
				t.Errorf("HEAD: status %d, Retry-After %q", a.status, a.header.Get("Retry-After"))
			}
		})
	}
}
