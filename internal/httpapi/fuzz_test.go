package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

// FuzzRequest sends any body under any key: for a charge, for a refund of any charge, or as a signed event.
// Whatever they are, the answer is no fault of ours, and leaves behind what it says alone.
func FuzzRequest(f *testing.F) {
	testdb.Long(f, "it takes a large part of the time")
	theContract(f) // an input that takes ten seconds ends the run, and to read the contract may
	w := serve(f, takesEvents)
	charge := idOf(direct(f, w.handler, post("charge", body())).header.Get("Location"))
	right := event("evt_1", "payment_intent.succeeded", intentOf(charge))
	for _, e := range []string{
		"", "null", "{}", "[]", right, right[1:], right + "x", right + "\x00",
		event("evt_2", "refund.created", otherOf("refund", charge)),
		event("evt_4", "payment_intent.\ufffd", intentOf(charge)),
		event("evt_5", "payment_intent.x", `{"id":"pi","payment_intent":"\ud800","metadata":{"charge_id":"`+charge+`"}}`),
		`{"id":"evt_7","type":"refund.x","data":{"object":{"id":"re","payment_intent":{"id":"pi"}}}}`,
	} {
		f.Add("", "an event", e)
	}
	for _, key := range []string{"key-1", `"a\"b"`, "k\x00"} {
		f.Add(key, "", body("items", items(3), "metadata", `{"":"","a":null}`, "description", `"\u0041\uffff"`))
	}
	for id, request := range map[string]string{
		"ch_1": "{}", "the charge": `{"amount":1,"reason":"\u0000"}`, "%00": `{"amount":null}`, "4242424242424242": "", "..": "null",
	} {
		f.Add("key-2", id, request)
	}
	f.Fuzz(func(t *testing.T, key, id, request string) {
		c := post(key, request)
		switch {
		case id == "an event":
			c = signed(request)
		case id != "":
			c.path += "/" + strings.Replace(id, "the charge", charge, 1) + "/refunds"
		}
		before := rows(t, w.db)
		a := direct(t, judged(t, w.server.Handler), c)
		added, replayed := map[string]int64{}, a.header.Get("Idempotent-Replayed") != ""
		switch {
		case a.status == http.StatusAccepted && id == "":
			if !replayed {
				added = ofCharges(1)
			}
		case a.status == http.StatusOK && id == "an event":
			added["outbox"] = min(1, rows(t, w.db)["outbox"]-before["outbox"])
		case a.status < 400 || a.status > 499:
			t.Errorf("status %d for key %q, charge %q and %q: %s", a.status, key, id, request, a.body)
		case a.header.Get("Idempotency-Expires") != "" && !replayed && readProblem(t, a).Type != "/problems/idempotency-key-reused":
			added["idempotency_keys"] = 1 // a refusal of the business
		}
		wantRows(t, w.db, before, added)
	})
}
