package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMethodNotAllowed(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.accept(t, "key-1", body()).header.Get("Location")
	before := rows(t, w.db)
	reads := []string{"GET", "HEAD", "OPTIONS"}
	for _, test := range []struct {
		path  string
		allow []string
	}{
		{"/v1/charges", []string{"GET", "HEAD", "OPTIONS", "POST"}},
		{charge, reads},
		{charge + "/events", reads},
		{"/v1/balances", reads},
		{"/v1/audit", reads},
		{"/healthz", reads},
		{"/readyz", reads},
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "BREW"} {
			if slices.Contains(test.allow, method) {
				continue
			}
			t.Run(method+" "+strings.Replace(test.path, charge, "a charge", 1), func(t *testing.T) {
				t.Parallel()
				c := get(test.path).with("Idempotency-Key", "key-1")
				c.method = method
				a := w.send(t, c)
				if method == http.MethodHead {
					if a.status != http.StatusMethodNotAllowed {
						t.Errorf("status %d", a.status)
					}
				} else {
					wantProblem(t, a, "/problems/method-not-allowed")
				}
				allowed := strings.Split(a.header.Get("Allow"), ", ")
				slices.Sort(allowed)
				if diff := cmp.Diff(test.allow, allowed); diff != "" {
					t.Errorf("Allow (-want +got):\n%s", diff)
				}
				wantRows(t, w.db, before, nil)
			})
		}
	}
}

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
			t.Parallel()
			a := w.send(t, get(test.path))
			p := wantProblem(t, a, "/problems/not-found")
			if p.Instance != test.path {
				t.Errorf("instance is %q, want %q", p.Instance, test.path)
			}
		})
	}
	for _, path := range []string{charge, charge + "/events"} {
		t.Run("another merchant's "+strings.Replace(path, charge, "charge", 1), func(t *testing.T) {
			t.Parallel()
			other := w.send(t, get(path).with("Authorization", "Bearer "+strangerKey))
			p := wantProblem(t, other, "/problems/not-found")
			unknown := w.send(t, get("/v1/charges/ch_unknown"))
			if strings.Replace(unknown.body, "/v1/charges/ch_unknown", p.Instance, 1) != other.body {
				t.Errorf("it is told apart from an unknown one:\n%s%s", other.body, unknown.body)
			}
		})
	}
}

func TestBalancesAreTheCallersOwn(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.accept(t, "key-1", body())
	a := w.send(t, get("/v1/balances").with("Authorization", "Bearer "+strangerKey))
	if diff := cmp.Diff([]any{}, members(t, a.body)["data"]); diff != "" {
		t.Errorf("balances of another merchant (-want +got):\n%s", diff)
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
			t.Parallel()
			a := w.send(t, call{method: http.MethodGet, path: "/healthz", header: http.Header{"X-Request-Id": test.id}})
			got := a.header.Values("X-Request-Id")
			if len(got) != 1 || got[0] == "" || test.kept != (len(test.id) == 1 && got[0] == test.id[0]) {
				t.Errorf("X-Request-Id is %q", got)
			}
		})
	}
	t.Run("it is kept with the event", func(t *testing.T) {
		t.Parallel()
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
