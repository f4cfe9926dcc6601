package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/httpapi"
)

func TestNaturalKeys(t *testing.T) {
	t.Parallel()
	natural := func(t *testing.T) *world {
		t.Helper()
		return serveWith(t, func(api *httpapi.Config) { api.NaturalKeys = true })
	}
	// under is a request with these values of the header, or without it.
	under := func(path, body string, values ...string) call {
		return to(path, "", body).with("Idempotency-Key", values...)
	}
	headers := map[string][]string{"no header": nil, "another header": {"mine"}, "no key": {`"`}, "two keys": {"a", "b"}}
	wantKey := func(t *testing.T, a answer, want string) {
		t.Helper()
		if got := a.header.Get("Idempotency-Key"); got != want {
			t.Errorf("the key is %q, want %q", got, want)
		}
	}

	t.Run("a charge has its order's, whatever header comes with it", func(t *testing.T) {
		t.Parallel()
		w := natural(t)
		order := body("order_id", `"order 7"`)
		first := w.accept(t, "", order)
		wantKey(t, first, "order%207:charge:v1")
		before := rows(t, w.db)
		for _, values := range headers {
			wantReplay(t, first, w.send(t, under("/v1/charges", order, values...)))
		}
		other := w.send(t, under("/v1/charges", body("order_id", `"order 7"`, "amount", "1")))
		wantPointers(t, wantProblem(t, other, "/problems/idempotency-key-reused"), "/amount")
		wantRows(t, w.db, before, nil)
	})

	t.Run("a cancellation has its charge's", func(t *testing.T) {
		t.Parallel()
		w := natural(t)
		open := w.accept(t, "", body()).header.Get("Location")
		first := w.accepted(t, under(open+"/cancel", ""))
		wantKey(t, first, idOf(open)+":cancel:v1")
		for _, values := range headers {
			wantReplay(t, first, w.send(t, under(open+"/cancel", "{}", values...)))
		}
	})

	t.Run("a refund has the client's own, and its charge's where none is given", func(t *testing.T) {
		t.Parallel()
		w := natural(t)
		refunds := w.captured(t, "") + "/refunds"
		for _, values := range [][]string{{""}, {`"`}, {"a", "b"}} {
			wantProblem(t, w.send(t, under(refunds, `{"amount":1}`, values...)), "/problems/idempotency-key-invalid")
		}
		first := w.accepted(t, under(refunds, `{"amount":1}`))
		wantKey(t, first, idOf(strings.TrimSuffix(refunds, "/refunds"))+":refund:v1")
		wantReplay(t, first, w.send(t, under(refunds, `{"amount":1}`)))
		wantProblem(t, w.send(t, under(refunds, `{"amount":2}`)), "/problems/idempotency-key-reused")
		for _, own := range []string{"second", "v2", "v3"} {
			if a := w.accepted(t, under(refunds, `{"amount":1}`, own)); a.header.Get("Idempotent-Replayed") != "" {
				t.Errorf("%s is no key of its own: %s", own, a.body)
			}
		}
	})

	t.Run("another version is the same work once more", func(t *testing.T) {
		t.Parallel()
		w := natural(t)
		first := w.accept(t, "", body())
		for _, header := range []string{"v1", `"v1"`} {
			wantReplay(t, first, w.send(t, post(header, body())))
		}
		second := w.accept(t, "v2", body("payment_method", `"pm_card_mastercard"`))
		wantKey(t, second, "order-1:charge:v2")
		for _, header := range []string{"v0", "v01", "v1000", "v-1", "V2", "v", "2"} { // name none
			a := w.send(t, post(header, body("payment_method", `"pm_card_mastercard"`)))
			wantProblem(t, a, "/problems/idempotency-key-reused")
		}
	})

	t.Run("the name of an order is written so that two orders are two keys", func(t *testing.T) {
		t.Parallel()
		w := natural(t)
		long := body("order_id", text(255))
		first := w.accept(t, "", long)
		if key := first.header.Get("Idempotency-Key"); !strings.HasPrefix(key, "sha256:") {
			t.Errorf("the key is %q", key)
		}
		wantReplay(t, first, w.send(t, post("", long)))
		// Percent-encoded, # is %23, and with it the digits would pass for a card's.
		for _, order := range []string{`"` + strings.Repeat("é", 254) + `e"`, `"#10000000427626"`} {
			if a := w.accept(t, "", body("order_id", order)); a.status != http.StatusAccepted || a.header.Get("Idempotent-Replayed") != "" {
				t.Errorf("%s: status %d: %s", order, a.status, a.body)
			}
		}
	})
}
