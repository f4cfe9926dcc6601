package httpapi_test

import (
	"net/http"
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
		{"the bare prefix", "/v1"},
		{"a collection with a slash", "/v1/charges/"},
		{"a route below a charge", charge + "/nothing"},
		{"a charge that is not there", "/v1/charges/ch_00000000000000000000000000000000"},
		{"a refund that was not requested", charge + "/refunds/re_1"},
		{"its events", "/v1/charges/ch_00000000000000000000000000000000/events"},
		{"a charge's id in upper case", strings.ToUpper(charge[:len("/v1/charges/ch_")]) + charge[len("/v1/charges/ch_"):]},
		{"an id with NUL", "/v1/charges/%00"},
		{"an id with NUL at its end", charge + "%00"},
		{"events of an id with NUL", "/v1/charges/%00/events"},
		{"an id that is not UTF-8", "/v1/charges/%FF"},
		{"an id that is not UTF-8, in lower case", "/v1/charges/%ff"},
		{"an id with an encoded slash", "/v1/charges/a%2fevents"},
		{"an id with dots", "/v1/charges/.."},
		{"an id with encoded dots", "/v1/charges/%2e%2e"},
		{"an id with a quote", "/v1/charges/ch_'%20or%20'1'='1"},
		{"a wildcard", "/v1/charges/*"},
		{"a percent sign", "/v1/charges/%25"},
		{"a line end", "/v1/charges/a%0d%0aSet-Cookie:%20a=b"},
		{"a very long id", "/v1/charges/" + long},
		{"a very long route", "/" + long},
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

func TestRequestID(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for _, test := range []struct {
		name string
		id   []string
		kept bool
	}{
		{"a short visible line is kept", []string{"req-1/A:b"}, true},
		{"128 characters are kept", []string{strings.Repeat("r", 128)}, true},
		{"none is made", nil, false},
		{"an empty one is replaced", []string{""}, false},
		{"129 characters are replaced", []string{strings.Repeat("r", 129)}, false},
		{"a space is replaced", []string{"req 1"}, false},
		{"a tab is replaced", []string{"req\t1"}, false},
		{"a card number is replaced", []string{"4242-4242-4242-4242"}, false},
		{"what is not ASCII is replaced", []string{"réq"}, false},
		{"what is not UTF-8 is replaced", []string{"req\xff"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, call{method: http.MethodGet, path: "/healthz", header: http.Header{"X-Request-Id": test.id}})
			got := a.header.Values("X-Request-Id")
			if len(got) != 1 || got[0] == "" || test.kept != (len(test.id) == 1 && got[0] == test.id[0]) {
				t.Errorf("X-Request-Id is %q", got)
			}
		})
	}
	t.Run("it is kept with the event", func(t *testing.T) {
		w := serve(t)
		w.send(t, post("key-1", body()).with("X-Request-Id", "req-42"))
		var n int
		err := w.db.QueryRow(t.Context(), `
select count(*)
  from ledger_events
 where metadata::text like '%req-42%'`).Scan(&n)
		if err != nil || n != 1 {
			t.Errorf("%d events with the request's id: %v", n, err)
		}
	})
}
