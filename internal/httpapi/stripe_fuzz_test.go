package httpapi_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// FuzzStripeEvent signs any body. Whatever it is, the answer is thanks or a
// refusal, never a fault of ours, and what it leaves is at most one message.
func FuzzStripeEvent(f *testing.F) {
	testdb.Long(f, "it takes a large part of the time")
	db := testdb.Open(f)
	register(f, db)
	api := newAPI(testdb.As(f, db, postgres.RoleAPI), io.Discard)
	takesEvents(api)
	handler := made(f, api).Handler()
	accepted := serveHTTP(f, handler, post("key-1", body()))
	if accepted.status != http.StatusAccepted {
		f.Fatalf("status %d: %s", accepted.status, accepted.body)
	}
	charge := idOf(accepted.header.Get("Location"))
	right := event("evt_1", "payment_intent.succeeded", intentOf(charge))
	for _, e := range []string{
		"", "null", "{}", "[]", right, right[1:], right + "x", right + "\x00",
		event("evt_2", "refund.created", refundOf(charge)),
		event("evt_3", "charge.refunded", chargeOf(charge, `{"charge_id":"\u0000"}`)),
		event("evt_4", "payment_intent.\ufffd", intentOf(charge)),
		event("evt_5", "payment_intent.x", `{"id":"pi","payment_intent":"\ud800","metadata":{"charge_id":"`+charge+`"}}`),
		`{"id":"evt_6","type":"refund.x","data":{"object":{"id":"re","payment_intent":"pi"}}}`,
		`{"id":"evt_7","type":"refund.x","data":{"object":{"id":"re","payment_intent":{"id":"pi"}}}}`,
	} {
		f.Add(e)
	}
	f.Fuzz(func(t *testing.T, e string) {
		before := rows(t, db)
		a := serveHTTP(t, handler, signed(e))
		after := rows(t, db)
		switch a.status {
		case http.StatusOK:
			if n := after["inbox"] + after["inbox_quarantine"] - before["inbox"] - before["inbox_quarantine"]; n > 1 {
				t.Errorf("%q left %d messages", e, n)
			}
			delete(before, "inbox")
			delete(before, "inbox_quarantine")
			delete(after, "inbox")
			delete(after, "inbox_quarantine")
			for table, n := range before {
				if after[table] != n {
					t.Errorf("%q changed %s", e, table)
				}
			}
		case http.StatusRequestEntityTooLarge:
			wantProblem(t, a, "/problems/too-large")
			wantRows(t, db, before, nil)
		default:
			wantProblem(t, a, "/problems/malformed")
			wantRows(t, db, before, nil)
		}
	})
}
