package httpapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
)

// What a request is fingerprinted by is stored: if it came out otherwise one
// day, every retry of a request from before would be refused.
func TestRulesTheFingerprintIsOfTheTypedRequest(t *testing.T) {
	t.Parallel()
	w := serve(t)
	routes := w.routes(t)
	canonical := map[string]string{
		"a charge": `{"order_id":"order-1","amount":2000,"currency":"USD","payment_method":"pm_card_visa",` +
			`"items":[{"sku":"mug","quantity":2}],"description":"A gift","metadata":{"a":"1","b":"2"}}`,
		"a cancellation": `{}`,
		"a refund":       `{"amount":1,"reason":"broken"}`,
	}
	written := map[string]string{
		"a charge": ` {"metadata":{"b":"2","a":"1"},"description":"\u0041 gift","items":[{"quantity":2,"sku":"mug"}],` +
			`"payment_method":"pm_card_visa","currency":"USD","amount":2000,"order_id":"order-1"}`,
		"a cancellation": "",
		"a refund":       ` {"reason":"\u0062roken","amount":1} `,
	}
	for _, r := range routes {
		t.Run(r.name, func(t *testing.T) {
			w.accepted(t, to(r.path, "fingerprint", written[r.name]))
			var fingerprint, request []byte
			err := w.db.QueryRow(t.Context(), `
select fingerprint,
       request
  from idempotency_keys
 where key = 'fingerprint'
   and operation = $1`, r.operation).Scan(&fingerprint, &request)
			if err != nil {
				t.Fatal(err)
			}
			want := idempotency.Fingerprint([]byte("v1"), []byte("POST"), []byte(r.path), []byte("acme"), []byte(canonical[r.name]))
			if diff := cmp.Diff(canonical[r.name], string(request)); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			if !cmp.Equal(want, fingerprint) {
				t.Errorf("the fingerprint is %x, want %x", fingerprint, want)
			}
		})
	}
}

func TestRulesAnotherRefundIsRefused(t *testing.T) {
	t.Parallel()
	w := serve(t)
	paid, open := w.captured(t, "paid"), w.accept(t, "open", body()).header.Get("Location")
	other := w.accept(t, "other", body()).header.Get("Location")
	first := w.accepted(t, to(paid+"/refunds", "refund", `{"amount":321,"reason":"broken"}`))
	w.accepted(t, to(open+"/cancel", "cancel", ""))
	before := rows(t, w.db)
	for _, test := range []struct {
		name, path, key, body string
		pointers              []string
	}{
		{"another amount", paid + "/refunds", "refund", `{"amount":322,"reason":"broken"}`, []string{"/amount"}},
		{"no amount", paid + "/refunds", "refund", `{"reason":"broken"}`, []string{"/amount"}},
		{"another reason", paid + "/refunds", "refund", `{"amount":321,"reason":"Broken"}`, []string{"/reason"}},
		{"both", paid + "/refunds", "refund", `{"amount":4321}`, []string{"/amount", "/reason"}},
		{"another charge", open + "/refunds", "refund", `{"amount":321,"reason":"broken"}`, nil},
		{"another charge and amount", open + "/refunds", "refund", `{"amount":322,"reason":"broken"}`, []string{"/amount"}},
		{"a cancellation of another charge", other + "/cancel", "cancel", "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, to(test.path, test.key, test.body))
			wantPointers(t, wantProblem(t, a, "/problems/idempotency-key-reused"), test.pointers...)
			for _, value := range []string{"321", "322", "roken"} {
				if strings.Contains(strings.ReplaceAll(a.body, test.path, ""), value) {
					t.Errorf("it repeats the value %s: %s", value, a.body)
				}
			}
			if a.header.Get("Location") != "" || a.header.Get("Idempotency-Key") != test.key || a.header.Get("Idempotency-Expires") == "" {
				t.Errorf("headers: %v", a.header)
			}
			wantRows(t, w.db, before, nil)
		})
	}
	t.Run("the first one", func(t *testing.T) {
		wantReplay(t, first, w.send(t, to(paid+"/refunds", "refund", `{"amount":321,"reason":"broken"}`)))
	})
}
