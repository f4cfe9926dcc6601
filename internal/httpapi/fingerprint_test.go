package httpapi_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

const original = `{"order_id":"order-1","amount":2000,"currency":"USD","payment_method":"pm_card_visa","customer":"cus_ada",` +
	`"items":[{"sku":"tshirt","quantity":2},{"sku":"mug","quantity":1}],"description":"A gift",` +
	`"metadata":{"channel":"web","a":"b"}}`

func TestReplay_ignoresSpelling(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for i, test := range []struct{ name, first, again string }{
		{
			"white space", body(),
			"\r\n\t" + ` { "order_id" : "order-1",` + "\n" + `"amount" : 2000 , "currency":"USD","payment_method":"pm_card_visa" } ` + "\n",
		},
		{"items null", body(), body("items", "null")},
		{"metadata with a pair of null", body(), body("metadata", `{"channel":null}`)},
		{"description null", body(), body("description", "null")},
		{"customer null", body(), body("customer", "null")},
		{"one form of absence for another", body("items", "null", "metadata", "{}"), body("items", "[]", "description", "null")},
	} {
		t.Run(test.name, func(t *testing.T) {
			key := "key-" + strconv.Itoa(i)
			first := w.accept(t, key, test.first)
			again := w.send(t, post(key, test.again).with("Content-Type", "Application/JSON; charset=UTF-8"))
			if again.status != first.status || again.header.Get("Idempotent-Replayed") != "true" || again.body != first.body {
				t.Errorf("status %d, not the first answer:\n%s%s", again.status, first.body, again.body)
			}
		})
	}
}

// TestReusedKey_isRefused, and the refusal names the members that differ, not their values.
func TestReusedKey_isRefused(t *testing.T) {
	t.Parallel()
	w := serve(t)
	paid, open := w.captured(t, "paid"), w.accept(t, "open", body()).header.Get("Location")
	other := w.accept(t, "other", body()).header.Get("Location")
	w.accept(t, "charge", original)
	first := w.accepted(t, to(paid+"/refunds", "refund", `{"amount":321,"reason":"broken"}`))
	w.accepted(t, to(open+"/cancel", "cancel", ""))
	before := rows(t, w.db)
	charge := func(from, to string) call { return post("charge", strings.Replace(original, from, to, 1)) }
	refund := func(charge, body string) call { return to(charge+"/refunds", "refund", body) }
	for _, test := range []struct {
		name     string
		call     call
		pointers string
	}{
		{"another amount", charge("2000", "2001"), "/amount"},
		{"another customer", charge("cus_ada", "cus_bob"), "/customer"},
		{"no customer", charge(`,"customer":"cus_ada"`, ""), "/customer"},
		{"no description", charge(`,"description":"A gift"`, ""), "/description"},
		{"another metadata name", charge("channel", "x/y~z"), "/metadata/channel /metadata/x~1y~0z"},
		{"a refund of another amount", refund(paid, `{"amount":322,"reason":"broken"}`), "/amount"},
		{"a refund with another amount and reason", refund(paid, `{"amount":4321}`), "/amount /reason"},
		{"a refund of another charge", refund(open, `{"amount":321,"reason":"broken"}`), ""},
		{"a cancellation of another charge", to(other+"/cancel", "cancel", ""), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, test.call)
			wantPointers(t, wantProblem(t, a, "/problems/idempotency-key-reused"), strings.Fields(test.pointers)...)
			for _, value := range []string{"2000", "2001", "gift", "cus_", "321", "322", "roken"} {
				if strings.Contains(strings.ReplaceAll(a.body, test.call.path, ""), value) {
					t.Errorf("the answer repeats the value %s: %s", value, a.body)
				}
			}
			key := test.call.header.Get("Idempotency-Key")
			if a.header.Get("Location") != "" || a.header.Get("Idempotency-Key") != key || a.header.Get("Idempotency-Expires") == "" {
				t.Errorf("headers: %v", a.header)
			}
			wantRows(t, w.db, before, nil)
		})
	}
	wantReplay(t, first, w.send(t, refund(paid, `{"amount":321,"reason":"broken"}`)))
}

// What a request is fingerprinted by is stored: if it came out otherwise one
// day, every retry of a request from before would be refused.
func TestFingerprint_isOfTheTypedRequest(t *testing.T) {
	t.Parallel()
	w := serve(t)
	routes := w.routes(t)
	canonical := map[string]string{
		"a charge": `{"order_id":"order-1","amount":2000,"currency":"USD","payment_method":"pm_card_visa","customer":"cus_ada",` +
			`"items":[{"sku":"mug","quantity":2}],"description":"A gift","metadata":{"a":"1","b":"2"}}`,
		"a cancellation": `{}`,
		"a refund":       `{"amount":1,"reason":"broken"}`,
	}
	written := map[string]string{
		"a charge": ` {"metadata":{"b":"2","a":"1"},"description":"\u0041 gift","items":[{"quantity":2,"sku":"mug"}],` +
			`"customer":"cus_ada","payment_method":"pm_card_visa","currency":"USD","amount":2000,"order_id":"order-1"}`,
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
			testdb.Must(t, err)
			want := idempotency.Fingerprint([]byte("v1"), []byte("POST"), []byte(r.path), []byte("acme"), []byte(canonical[r.name]))
			testrun.Same(t, "request", canonical[r.name], string(request))
			if !cmp.Equal(want, fingerprint) {
				t.Errorf("the fingerprint is %x, want %x", fingerprint, want)
			}
		})
	}
}
