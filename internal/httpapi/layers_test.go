package httpapi_test

import (
	"bufio"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testdb"
)

const maxBody = 65536 // bytes

// padded is a charge request of so many bytes.
func padded(size int) string {
	request := body()
	return request + strings.Repeat(" ", size-len(request))
}

func TestBody_sizeAndMediaType(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.accept(t, "key-1", padded(maxBody))
	for i, kind := range []string{"Application/JSON;charset=UTF-8", `application/json; charset="utf-8"; profile=x`, "application/json; charset=utf8"} {
		w.accepted(t, post("key-2"+strconv.Itoa(i), body()).with("Content-Type", kind).with("Content-Encoding", "identity"))
	}
	before := rows(t, w.db)
	t.Run("a body that does not say its size", func(t *testing.T) {
		a := readAnswer(t, bufio.NewReader(w.dial(t, inChunks("key-3", padded(maxBody+1)))))
		wantProblem(t, a, "/problems/too-large")
	})
	faults := []faulty{
		{"a body of 1 MB", post("key-3", padded(1<<20)), "/problems/too-large"},
		{"no body of no type", post("key-3", "").with("Content-Type"), "/problems/malformed"},
	}
	for name, types := range map[string][]string{
		"no type":                      nil,
		"a form":                       {"application/x-www-form-urlencoded"},
		"JSON with a broken parameter": {"application/json; charset"},
		"two types at once":            {"application/json, text/plain"},
		"a type twice, joined":         {"application/json, application/json"},
		"a type twice":                 {"application/json", "application/json"},
		"JSON in another charset":      {"application/json; charset=utf-16"},
	} {
		faults = append(faults, faulty{name, post("key-3", body()).with("Content-Type", types...), "/problems/unsupported-media-type"})
	}
	w.refuses(t, faults)
	wantRows(t, w.db, before, nil)
}

// faulty is a request that is refused before its key is read.
type faulty struct {
	name string
	call call
	kind string
}

// refuses sends requests that are refused before their keys are read. They leave no row.
func (w *world) refuses(t *testing.T, faults []faulty) {
	t.Helper()
	before := rows(t, w.db)
	for _, test := range faults {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, test.call)
			wantProblem(t, a, test.kind)
			if a.header.Get("Idempotency-Key") != "" || a.header.Get("Idempotency-Expires") != "" || a.header.Get("Location") != "" {
				t.Errorf("headers %v", a.header)
			}
			if regexp.MustCompile(`4242[ -]?4242`).MatchString(a.body) { // fewer digits are in ids by chance
				t.Errorf("the card number is echoed: %s", a.body)
			}
		})
	}
	wantRows(t, w.db, before, nil)
}

func (r route) faults() []faulty {
	large := r.body + strings.Repeat(" ", maxBody+1-len(r.body))
	faults := []faulty{
		{"a body too large", to(r.path, "key", large), "/problems/too-large"},
		{"a body too large, without an API key", to(r.path, "key", large).with("Authorization"), "/problems/too-large"},
		{"no API key", r.under("key").with("Authorization"), "/problems/unauthorized"},
		{"an unknown API key", r.under("key").with("Authorization", "Bearer nobody"), "/problems/unauthorized"},
		{"an unknown API key and no key", r.under("").with("Authorization", "Bearer nobody").with("Idempotency-Key"), "/problems/unauthorized"},
		{"another media type", r.under("key").with("Content-Type", "text/plain"), "/problems/unsupported-media-type"},
		{"half a body", to(r.path, "key", "{"), "/problems/malformed"},
		{"an unknown member", to(r.path, "key", `{"tip":1}`), "/problems/malformed"},
		{"an unknown member and no key", to(r.path, "", `{"tip":1}`).with("Idempotency-Key"), "/problems/malformed"},
		{"another method", r.under("key").like(http.MethodPut), "/problems/method-not-allowed"},
		{"no key", r.under("").with("Idempotency-Key"), "/problems/idempotency-key-missing"}, // idempotency.ParseKey judges what is one
		{"an empty key", r.under(""), "/problems/idempotency-key-invalid"},
		{"a key with a space inside", r.under("a b"), "/problems/idempotency-key-invalid"},
		{"two keys", r.under("").with("Idempotency-Key", "a", "b"), "/problems/idempotency-key-invalid"},
		{"two keys that a gateway joined", r.under("").with("Idempotency-Key", "a,a"), "/problems/idempotency-key-invalid"},
		{"a key with a parameter", r.under("").with("Idempotency-Key", "a;v=1"), "/problems/idempotency-key-invalid"},
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

// TestLayers_refuseBeforeTheKey: what they refuse is not stored and leaves the key
// free, and a key that has its answer does not get past them.
func TestLayers_refuseBeforeTheKey(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for _, r := range w.routes(t) {
		t.Run(r.name, func(t *testing.T) {
			w.refuses(t, r.faults())
			first := w.accepted(t, r.under("key"))
			w.refuses(t, r.faults())
			wantReplay(t, first, w.send(t, r.under("key")))
		})
	}
}

// needed is the scope of every route, "" where none is asked for, as the manual has them.
// HEAD needs what GET needs.
func needed() map[string]merchants.Scope {
	scopes := map[string]merchants.Scope{}
	for _, row := range slices.Concat(manual("http.md", "GET /"), manual("http.md", "POST /")) {
		route := regexp.MustCompile(`{(\w+)}`).ReplaceAllString(row[0], ":$1")
		scopes[route] = merchants.Scope(strings.Trim(row[2], "`–"))
		if path, read := strings.CutPrefix(route, "GET "); read {
			scopes["HEAD "+path] = scopes[route]
		}
	}
	return scopes
}

// request calls a route for things that are not there, without an idempotency
// key: it changes nothing where it is admitted.
func request(route string) call {
	method, path, _ := strings.Cut(route, " ")
	path = regexp.MustCompile(`:[a-z]+`).ReplaceAllString(path, "1")
	return to(path, "", "").with("Idempotency-Key").like(method)
}

func TestEveryRoute_needsItsScope(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	for _, scope := range merchants.Scopes() {
		alone := w.keyFor(t, scope)
		all := w.keyFor(t, slices.DeleteFunc(merchants.Scopes(), func(s merchants.Scope) bool { return s == scope })...)
		before["api_keys"] += 2
		before["operator_actions"] += 2
		for route, needs := range needed() {
			if needs == "" {
				continue
			}
			for key, lets := range map[string]bool{alone: needs == scope, all: needs != scope} {
				a := w.send(t, request(route).as(key))
				if a.status == http.StatusUnauthorized || lets == (a.status == http.StatusForbidden) {
					t.Errorf("%s by a key with the scope %s alone (%t) or all but it: status %d: %s", route, scope, key == alone, a.status, a.body)
				}
				if lets {
					continue
				}
				if want := fmt.Sprintf(`Bearer error="insufficient_scope", scope=%q`, needs); a.header.Get("WWW-Authenticate") != want {
					t.Errorf("%s: WWW-Authenticate is %s, want %s", route, a.header.Get("WWW-Authenticate"), want)
				}
				if strings.HasPrefix(route, "HEAD") {
					continue
				}
				if p := wantProblem(t, a, "/problems/forbidden"); !strings.Contains(p.Detail, string(needs)) {
					t.Errorf("%s: it does not say which scope is missing: %s", route, a.body)
				}
			}
		}
	}
	wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 1}) // that was given up
}

// Right after authentication, and before anything of the request is looked at.
func TestScope_precedesTheBody(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.accept(t, "used", body())
	reader := w.keyFor(t, merchants.ChargesRead)
	w.refuses(t, []faulty{
		{"authentication beats the scope", get("/v1/balances").as("unknown-key"), "/problems/unauthorized"},
		{"the method beats the scope", get("/v1/charges").like(http.MethodDelete).as(reader), "/problems/method-not-allowed"},
		{"the scope beats the media type", post("key-1", body()).with("Content-Type").as(reader), "/problems/forbidden"},
		{"the scope beats a malformed body", post("key-1", "{").as(reader), "/problems/forbidden"},
		{"the scope beats a missing key", post("", body()).with("Idempotency-Key").as(reader), "/problems/forbidden"},
		{"the scope beats a used key", post("used", body()).as(reader), "/problems/forbidden"},
		{"the scope beats a charge that is not there", to("/v1/charges/ch_1/refunds", "key-1", `{}`).as(reader), "/problems/forbidden"},
	})
	w.first(t, post("key-1", body()).as(w.keyFor(t, merchants.ChargesWrite)))
}
