package httpapi_test

import (
	"strings"
	"testing"
)

func TestNotFound(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.accept(t, "key-1", body()).header.Get("Location")
	long := strings.Repeat("c", 8000)
	for _, test := range []struct{ name, path string }{
		{"the root", "/"},
		{"an unknown route", "/v2/charges"},
		{"an unknown route under /v1", "/v1/nothing"},
		{"a collection with a slash", "/v1/charges/"},
		{"a route below a charge", charge + "/nothing"},
		{"a charge that is not there", "/v1/charges/ch_00000000000000000000000000000000"},
		{"a refund that was not requested", charge + "/refunds/re_1"},
		{"its events", "/v1/charges/ch_00000000000000000000000000000000/events"},
		{"a charge's id in upper case", strings.ToUpper(charge[:len("/v1/charges/ch_")]) + charge[len("/v1/charges/ch_"):]},
		{"an id with NUL", "/v1/charges/%00"},
		{"events of an id with NUL", "/v1/charges/%00/events"},
		{"an id that is not UTF-8", "/v1/charges/%FF"},
		{"an id with an encoded slash", "/v1/charges/a%2fevents"},
		{"an id with encoded dots", "/v1/charges/%2e%2e"},
		{"a percent sign", "/v1/charges/%25"},
		{"a line end", "/v1/charges/a%0d%0aSet-Cookie:%20a=b"},
		{"a very long id", "/v1/charges/" + long},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, get(test.path))
			p := wantProblem(t, a, "/problems/not-found")
			if p.Instance != test.path {
				t.Errorf("instance is %q, want %q", p.Instance, test.path)
			}
		})
	}
}
