package httpapi_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// fuzzed is an API for inputs of a fuzz test, on a database of its own.
func fuzzed(f *testing.F) (*postgres.DB, http.Handler) {
	f.Helper()
	testdb.Long(f, "it takes a large part of the time")
	theContract(f) // an input that takes ten seconds ends the run, and to read the contract may
	db := testdb.Open(f)
	register(f, db)
	api := newAPI(f, testdb.As(f, db, postgres.RoleAPI), io.Discard)
	takesEvents(api)
	return db, httpapi.New(*api).Handler()
}

// FuzzRequest sends any body under any key: for a charge, or for a refund of any charge. Whatever they
// are, the answer is a charge or a refusal that leaves nothing behind but itself, never a fault of ours.
func FuzzRequest(f *testing.F) {
	for _, key := range []string{"key-1", `"a\"b"`, "k\x00"} {
		f.Add(key, "", body("items", items(3), "metadata", `{"":"","a":null}`, "description", `"\u0041\uffff"`))
	}
	for id, request := range map[string]string{
		"ch_1": "{}", "the charge": `{"amount":1,"reason":"\u0000"}`, "%00": `{"amount":null}`, "4242424242424242": "", "..": "null",
	} {
		f.Add("key-2", id, request)
	}
	db, handler := fuzzed(f)
	charge := idOf(direct(f, handler, post("charge", body())).header.Get("Location"))
	f.Fuzz(func(t *testing.T, key, id, request string) {
		c := post(key, request)
		if id != "" {
			c.path += "/" + strings.Replace(id, "the charge", charge, 1) + "/refunds"
		}
		before := rows(t, db)
		a := direct(t, judged(t, handler), c)
		added, replayed := map[string]int64{}, a.header.Get("Idempotent-Replayed") != ""
		switch {
		case a.status == http.StatusAccepted && id == "":
			if !replayed {
				added = ofCharges(1)
			}
		case a.status < 400 || a.status > 499:
			t.Errorf("status %d for key %q, charge %q and %q: %s", a.status, key, id, request, a.body)
		case a.header.Get("Idempotency-Expires") != "" && !replayed && readProblem(t, a).Type != "/problems/idempotency-key-reused":
			added["idempotency_keys"] = 1 // a refusal of the business
		}
		wantRows(t, db, before, added)
	})
}

// FuzzStripeEvent signs any body. Whatever it is, the answer is thanks or a
// refusal, never a fault of ours, and what it leaves is at most one message.
func FuzzStripeEvent(f *testing.F) {
	db, handler := fuzzed(f)
	charge := idOf(direct(f, handler, post("key-1", body())).header.Get("Location"))
	right := event("evt_1", "payment_intent.succeeded", intentOf(charge))
	for _, e := range []string{
		"", "null", "{}", "[]", right, right[1:], right + "x", right + "\x00",
		event("evt_2", "refund.created", otherOf("refund", charge)),
		event("evt_3", "charge.refunded", otherOf("charge", charge)),
		event("evt_4", "payment_intent.\ufffd", intentOf(charge)),
		event("evt_5", "payment_intent.x", `{"id":"pi","payment_intent":"\ud800","metadata":{"charge_id":"`+charge+`"}}`),
		`{"id":"evt_6","type":"refund.x","data":{"object":{"id":"re","payment_intent":"pi"}}}`,
		`{"id":"evt_7","type":"refund.x","data":{"object":{"id":"re","payment_intent":{"id":"pi"}}}}`,
	} {
		f.Add(e)
	}
	f.Fuzz(func(t *testing.T, e string) {
		before := rows(t, db)
		a := direct(t, judged(t, handler), signed(e))
		switch a.status {
		case http.StatusOK:
			sent := rows(t, db)["outbox"] - before["outbox"]
			if sent > 1 {
				t.Errorf("%q left %d messages", e, sent)
			}
			wantRows(t, db, before, map[string]int64{"outbox": sent})
		case http.StatusRequestEntityTooLarge:
			wantProblem(t, a, "/problems/too-large")
			wantRows(t, db, before, nil)
		default:
			wantProblem(t, a, "/problems/malformed")
			wantRows(t, db, before, nil)
		}
	})
}
