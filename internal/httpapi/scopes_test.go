package httpapi_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testdb"
)

// needed is the scope of every route, "" where none is asked for, as the manual has them.
// HEAD needs what GET needs.
func needed() map[string]merchants.Scope {
	scopes := map[string]merchants.Scope{}
	for _, row := range slices.Concat(manual("GET /"), manual("POST /")) {
		route := regexp.MustCompile(`{(\w+)}`).ReplaceAllString(row[0], ":$1")
		scopes[route] = merchants.Scope(strings.Trim(row[2], "`–"))
		if path, read := strings.CutPrefix(route, "GET "); read {
			scopes["HEAD "+path] = scopes[route]
		}
	}
	return scopes
}

// request calls a route for things that are not there, without an idempotency
// key: it changes nothing where it is let in.
func request(route string) call {
	method, path, _ := strings.Cut(route, " ")
	path = regexp.MustCompile(`:[a-z]+`).ReplaceAllString(path, "1")
	return to(path, "", "").with("Idempotency-Key").like(method)
}

func TestEveryRouteDeclaresItsScope(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	for _, scope := range merchants.Scopes() {
		alone := w.keyFor(t, scope)
		all := w.keyFor(t, slices.DeleteFunc(merchants.Scopes(), func(s merchants.Scope) bool { return s == scope })...)
		before["api_keys"] += 2
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
	wantRows(t, w.db, before, nil)
}

// Right after authentication, and before anything of the request is looked at.
func TestScopeInTheOrderOfLayers(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.accept(t, "used", body())
	reader := w.keyFor(t, merchants.ChargesRead)
	before := rows(t, w.db)
	for _, test := range []struct {
		name string
		call call
		kind string
	}{
		{"size beats the scope", post("key-1", padded(maxBody+1)).as(reader), "/problems/too-large"},
		{"authentication beats the scope", get("/v1/audit").as("nobody"), "/problems/unauthorized"},
		{"the method beats the scope", get("/v1/charges").like(http.MethodDelete).as(reader), "/problems/method-not-allowed"},
		{"the scope beats the media type", post("key-1", body()).with("Content-Type").as(reader), "/problems/forbidden"},
		{"the scope beats a malformed body", post("key-1", "{").as(reader), "/problems/forbidden"},
		{"the scope beats an invalid body", post("key-1", body("amount", "0")).as(reader), "/problems/forbidden"},
		{"the scope beats a missing key", post("", body()).with("Idempotency-Key").as(reader), "/problems/forbidden"},
		{"the scope beats a used key", post("used", body()).as(reader), "/problems/forbidden"},
		{"the scope beats a reused key", post("used", body("amount", "1")).as(reader), "/problems/forbidden"},
		{"the scope beats a charge that is not there", to("/v1/charges/ch_1/refunds", "key-1", `{}`).as(reader), "/problems/forbidden"},
	} {
		t.Run(test.name, func(t *testing.T) {
			wantProblem(t, w.send(t, test.call), test.kind)
			wantRows(t, w.db, before, nil)
		})
	}
	a := w.accepted(t, post("key-1", body()).as(w.keyFor(t, merchants.ChargesWrite)))
	if a.header.Get("Idempotent-Replayed") != "" {
		t.Error("a refusal for the scope is replayed")
	}
}
