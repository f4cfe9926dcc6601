package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

// TestMerchant_doesNotSeeOthers asks for what is another merchant's and for what is not
// there at all: the answers are the same, byte for byte, but for what was asked.
func TestMerchant_doesNotSeeOthers(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.captured(t, "acme-charge")
	refund := w.accepted(t, to(charge+"/refunds", "acme-refund", `{"amount":1}`)).header.Get("Location")
	id, refundID := strings.TrimPrefix(charge, "/v1/charges/"), refund[strings.LastIndex(refund, "/")+1:]
	before := rows(t, w.db)

	none := strings.NewReplacer(
		id, "ch_"+strings.Repeat("0", len(id)-3),
		refundID, "re_"+strings.Repeat("0", len(refundID)-3),
		"acme-charge", "none-charge")
	for name, c := range map[string]call{
		"a charge":            get(charge),
		"its events":          get(charge + "/events"),
		"its refunds":         get(charge + "/refunds"),
		"a refund":            get(refund),
		"a key":               get("/v1/idempotency-keys/acme-charge"),
		"a cancellation":      to(charge+"/cancel", "globex-cancel", "{}"),
		"a refund asked for":  to(charge+"/refunds", "globex-refund", `{"amount":1}`),
		"a refund of the lot": to(charge+"/refunds", "globex-lot", `{}`),
	} {
		t.Run(name, func(t *testing.T) {
			c = c.as(strangerKey).with("X-Request-Id", "the-same")
			nothing := c
			nothing.path = none.Replace(c.path)
			if key := c.header.Get("Idempotency-Key"); key != "" {
				nothing = nothing.with("Idempotency-Key", "none"+key[len("none"):])
			}
			if nothing.path == c.path {
				t.Fatalf("both ask for %s", c.path)
			}
			got, want := w.send(t, c), w.send(t, nothing)
			if got.status != http.StatusNotFound || want.status != http.StatusNotFound {
				t.Errorf("status %d and %d, want 404: %s%s", got.status, want.status, got.body, want.body)
			}
			for _, header := range []http.Header{got.header, want.header} {
				for _, name := range []string{"Date", "Idempotency-Key", "Idempotency-Expires"} {
					header.Del(name)
				}
			}
			testrun.Same(t, "headers", want.header, got.header)
			testrun.Same(t, "body", want.body, none.Replace(got.body))
		})
	}
	// Refusals of the business are stored under globex' keys, and are all there is.
	wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 6})
}

// TestMerchant_sharesNoKeys: an idempotency key says nothing about another
// merchant's, whatever became of that one: not in the answer, and not when the key
// is looked up.
func TestMerchant_sharesNoKeys(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for _, key := range []string{"answered", "expired", "tombstone", "refused"} {
		w.accept(t, key, body())
	}
	exec(t, w.db, `update idempotency_keys set expires_at = clock_timestamp() where key in ('expired', 'tombstone')`)
	exec(t, w.db, `update idempotency_keys set body = null, request = null where key = 'tombstone'`)
	holdAt(t, w.db, "POST /v1/charges", "in-flight")
	never := w.accepted(t, post("never", body()).as(strangerKey))
	for _, key := range []string{"answered", "expired", "tombstone", "refused", "in-flight"} {
		wantProblem(t, w.send(t, get("/v1/idempotency-keys/"+key).as(strangerKey)), "/problems/not-found")
		for _, replayed := range []string{"", "true"} {
			a := w.accepted(t, post(key, body("order_id", `"globex-"`)).as(strangerKey))
			if a.header.Get("Idempotent-Replayed") != replayed {
				t.Errorf("%s is a replay: %q", key, a.header.Get("Idempotent-Replayed"))
			}
			if got, want := len(a.header), len(never.header)+len(replayed)/len("true"); got != want {
				t.Errorf("%s is answered with %v, an unused one with %v", key, a.header, never.header)
			}
		}
	}
}

// TestMerchant_readsItsOwnBalances looks at what two merchants are shown of all there is.
func TestMerchant_readsItsOwnBalances(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.captured(t, "acme-charge")
	if a := w.send(t, get("/v1/balances").as(strangerKey)); !strings.Contains(a.body, `"data":[]`) {
		t.Errorf("globex has %s", a.body)
	}
	if a := w.send(t, get("/v1/balances")); !strings.Contains(a.body, ":acme") || strings.Contains(a.body, "globex") {
		t.Errorf("acme has %s", a.body)
	}
}
