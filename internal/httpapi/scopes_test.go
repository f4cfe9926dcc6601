package httpapi_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testdb"
)

// needed is the scope of every route that asks for an API key. HEAD needs what
// GET needs.
func needed() map[string]merchants.Scope {
	return map[string]merchants.Scope{
		"POST /v1/charges":                    merchants.ChargesWrite,
		"POST /v1/charges/:id/cancel":         merchants.ChargesWrite,
		"POST /v1/charges/:id/refunds":        merchants.RefundsWrite,
		"GET /v1/charges":                     merchants.ChargesRead,
		"GET /v1/charges/:id":                 merchants.ChargesRead,
		"GET /v1/charges/:id/events":          merchants.ChargesRead,
		"GET /v1/charges/:id/refunds":         merchants.ChargesRead,
		"GET /v1/charges/:id/refunds/:refund": merchants.ChargesRead,
		"GET /v1/idempotency-keys/:key":       merchants.ChargesRead,
		"GET /v1/balances":                    merchants.ChargesRead,
		"GET /v1/audit":                       merchants.Admin,
		"GET /v1/inbox":                       merchants.Admin,
		"POST /v1/inbox/:id/retry":            merchants.Admin,
		"POST /v1/inbox/:id/discard":          merchants.Admin,
	}
}

// keyless are the routes under /v1 that ask for no API key, with what they ask
// for instead.
func keyless() map[string]string {
	return map[string]string{"POST /v1/webhooks/stripe": "a signature of the provider's"}
}

// served are all routes under /v1 as the router has them.
func served(t *testing.T, w *world) []string {
	t.Helper()
	router, ok := made(t, newAPI(w.db, w.log)).Handler().(*echo.Echo)
	if !ok {
		t.Fatal("the handler is no router")
	}
	var routes []string
	for _, r := range router.Routes() {
		if name := r.Method + " " + r.Path; strings.HasPrefix(r.Path, "/v1") && keyless()[name] == "" {
			routes = append(routes, name)
		}
	}
	slices.Sort(routes)
	return routes
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
	routes, scopes := served(t, w), needed()
	for _, route := range routes {
		if path, head := strings.CutPrefix(route, "HEAD "); head {
			scopes[route] = scopes["GET "+path]
		}
		if scopes[route] == "" {
			t.Errorf("%s has no scope here: declare it in server.go by needs(…), and add it to this test", route)
		}
	}
	for route := range scopes {
		if !slices.Contains(routes, route) {
			t.Errorf("%s is not served", route)
		}
	}
	before := rows(t, w.db)
	asked, refused := 0, 0
	for _, scope := range merchants.Scopes() {
		alone := w.keyFor(t, scope)
		all := w.keyFor(t, slices.DeleteFunc(merchants.Scopes(), func(s merchants.Scope) bool { return s == scope })...)
		before["api_keys"] += 2
		for _, route := range routes {
			for key, lets := range map[string]bool{alone: scopes[route] == scope, all: scopes[route] != scope} {
				asked++
				a := w.send(t, request(route).as(key))
				if a.status == http.StatusUnauthorized || lets == (a.status == http.StatusForbidden) {
					t.Errorf("%s by a key with the scope %s alone (%t) or all but it: status %d: %s", route, scope, key == alone, a.status, a.body)
				}
				if lets {
					continue
				}
				refused++
				if want := fmt.Sprintf(`Bearer error="insufficient_scope", scope=%q`, scopes[route]); a.header.Get("WWW-Authenticate") != want {
					t.Errorf("%s: WWW-Authenticate is %s, want %s", route, a.header.Get("WWW-Authenticate"), want)
				}
				if strings.HasPrefix(route, "HEAD") {
					continue
				}
				if p := wantProblem(t, a, "/problems/forbidden"); !strings.Contains(p.Detail, string(scopes[route])) {
					t.Errorf("%s: it does not say which scope is missing: %s", route, a.body)
				}
			}
		}
	}
	wantRows(t, w.db, before, nil)
	t.Logf("%d routes, %d requests, %d refused for their scope", len(routes), asked, refused)
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
			wantProblem(t, w.sendLarge(t, test.call), test.kind)
			wantRows(t, w.db, before, nil)
		})
	}
}

// A refusal for the scope is no answer: the same key serves the right key.
func TestARefusalForTheScopeUsesNoKeyUp(t *testing.T) {
	t.Parallel()
	w := serve(t)
	wantProblem(t, w.send(t, post("key-1", body()).as(w.keyFor(t, merchants.ChargesRead))), "/problems/forbidden")
	a := w.accepted(t, post("key-1", body()).as(w.keyFor(t, merchants.ChargesWrite)))
	if a.header.Get("Idempotent-Replayed") != "" {
		t.Error("it is a replay")
	}
}
