package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
)

// faulty is a request that is refused before its key is looked at.
type faulty struct {
	name string
	call call
	kind string
}

func (r route) faults() []faulty {
	large := r.body + strings.Repeat(" ", maxBody+1-len(r.body))
	faults := []faulty{
		{"a body too large", to(r.path, "key", large), "/problems/too-large"},
		{"a body too large, from nobody", to(r.path, "key", large).with("Authorization"), "/problems/too-large"},
		{"a body too large of another media type", to(r.path, "key", large).with("Content-Type"), "/problems/too-large"},
		{"no API key", r.under("key").with("Authorization"), "/problems/unauthorized"},
		{"an unknown API key", r.under("key").with("Authorization", "Bearer nobody"), "/problems/unauthorized"},
		{"an unknown API key and half a body", to(r.path, "key", "{").with("Authorization", "Bearer nobody"), "/problems/unauthorized"},
		{"an unknown API key and another media type", to(r.path, "key", "{").with("Authorization", "Bearer nobody").with("Content-Type"), "/problems/unauthorized"},
		{"an unknown API key and no key", r.under("").with("Authorization", "Bearer nobody").with("Idempotency-Key"), "/problems/unauthorized"},
		{"another media type", r.under("key").with("Content-Type", "text/plain"), "/problems/unsupported-media-type"},
		{"another media type and half a body", to(r.path, "key", "{").with("Content-Type", "text/plain"), "/problems/unsupported-media-type"},
		{"half a body", to(r.path, "key", "{"), "/problems/malformed"},
		{"an unknown member", to(r.path, "key", `{"tip":1}`), "/problems/malformed"},
		{"an unknown member and no key", to(r.path, "", `{"tip":1}`).with("Idempotency-Key"), "/problems/malformed"},
		{"an unknown member and half a key", to(r.path, `"`, `{"tip":1}`), "/problems/malformed"},
		{"an unknown member and a wrong value", to(r.path, "key", `{"amount":0,"tip":1}`), "/problems/malformed"},
		{"another method", r.under("key").like(http.MethodPut), "/problems/method-not-allowed"},
	}
	if r.operation != "POST /v1/charges" {
		nowhere := strings.Replace(r.path, "/v1/charges/", "/v1/charges/%00", 1)
		faults = append(faults,
			faulty{"a charge that cannot be", to(nowhere, "key", r.body), "/problems/not-found"},
			faulty{"a charge that cannot be, and no key", to(nowhere, "", r.body).with("Idempotency-Key"), "/problems/not-found"},
			faulty{"a charge that cannot be, and half a body", to(nowhere, "key", "{"), "/problems/malformed"})
	}
	if r.operation != "POST /v1/charges/:id/cancel" { // no value of which can be wrong
		faults = append(faults,
			faulty{"a wrong value", to(r.path, "key", `{"amount":0}`), "/problems/validation"},
			faulty{"a wrong value and no key", to(r.path, "", `{"amount":0}`).with("Idempotency-Key"), "/problems/validation"},
			faulty{"a wrong value and half a key", to(r.path, `"`, `{"amount":0}`), "/problems/validation"})
	}
	if r.operation == "POST /v1/charges/:id/refunds" {
		faults = append(faults,
			faulty{"a card number", to(r.path, "key", `{"reason":"4242 4242 4242 4242"}`), "/problems/validation"})
	}
	return faults
}

// TestRulesLayersBeforeTheKey: what they refuse is not stored and leaves the key
// free, and a key that has its answer does not get past them.
func TestRulesLayersBeforeTheKey(t *testing.T) {
	t.Parallel()
	w := serve(t)
	routes := w.routes(t)
	refused := func(t *testing.T, r route) {
		t.Helper()
		before := rows(t, w.db)
		for _, test := range r.faults() {
			a := w.send(t, test.call)
			if wantProblem(t, a, test.kind); t.Failed() {
				t.Fatalf("with %s", test.name)
			}
			if a.header.Get("Idempotency-Key") != "" || a.header.Get("Idempotency-Expires") != "" || a.header.Get("Location") != "" {
				t.Errorf("%s: headers %v", test.name, a.header)
			}
			if strings.Contains(a.body, "4242") {
				t.Errorf("the card number is echoed: %s", a.body)
			}
		}
		wantRows(t, w.db, before, nil)
	}
	for _, r := range routes {
		t.Run(r.name, func(t *testing.T) {
			refused(t, r)
			first := w.accepted(t, r.under("key"))
			refused(t, r)
			wantReplay(t, first, w.send(t, r.under("key")))
		})
	}
}
