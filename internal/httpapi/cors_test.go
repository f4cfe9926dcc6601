package httpapi_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/httpapi"
)

const shop = "https://shop.example"

// preflight is what a browser asks before a page of origin may send a charge.
func preflight(origin string) call {
	return call{method: http.MethodOptions, path: "/v1/charges", header: http.Header{
		"Origin":                         {origin},
		"Access-Control-Request-Method":  {http.MethodPost},
		"Access-Control-Request-Headers": {"authorization,content-type,idempotency-key"},
	}}
}

func origins(all ...string) func(*httpapi.Config) {
	return func(api *httpapi.Config) { api.Origins = all }
}

// isAllowed reports whether an answer says anything to a browser.
func isAllowed(a answer) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(a.header)), func(name string) bool { return strings.HasPrefix(name, "Access-Control-") })
}

func TestCORS(t *testing.T) {
	t.Parallel()

	t.Run("off unless set", func(t *testing.T) {
		t.Parallel()
		w := serve(t)
		a, b := w.send(t, preflight(shop)), w.accepted(t, post("key-1", body()).with("Origin", shop))
		wantProblem(t, a, "/problems/unauthorized")
		if isAllowed(a) || isAllowed(b) || b.header.Get("Vary") != "" {
			t.Errorf("%v, %v", a.header, b.header)
		}
	})

	t.Run("a preflight needs no API key, and every answer can be read", func(t *testing.T) {
		t.Parallel()
		w, r := serve(t, origins("https://other.example", shop)), &transcript{ids: map[string]string{}}
		before := rows(t, w.db)
		r.send(t, w, preflight(shop))
		wantRows(t, w.db, before, nil)
		for _, c := range []call{
			post("key-1", body()), post("key-1", body()), post("key-1", "{"),
			get("/v1/nothing"), get("/v1/balances").as("nobody"), get("/v1/charges").like(http.MethodPut),
		} {
			r.send(t, w, c.with("Origin", shop))
		}
		r.compare(t, "cors.txt")
	})

	t.Run("another origin is not allowed", func(t *testing.T) {
		t.Parallel()
		w := serve(t, origins(shop, "https://mug?.example", "https://*.mug.example"))
		for _, origin := range []string{
			"https://shop.example.evil", "https://evil.example", "https://eshop.example", "http://shop.example",
			"https://shop.example:8443", "https://Shop.example", "https://shopxexample", "null", "*",
			"https://mugs.example", "https://a.mug.example", "https://a.shop.example",
		} {
			for _, c := range []call{preflight(origin), get("/v1/balances").with("Origin", origin)} {
				if a := w.send(t, c); isAllowed(a) {
					t.Errorf("%s by %s: %v", c.method, origin, a.header)
				}
			}
		}
	})

	t.Run("a request that is no preflight is answered as without CORS", func(t *testing.T) {
		t.Parallel()
		w := serve(t, origins(shop))
		for name, c := range map[string]call{
			"of no browser":     get("/v1/charges").like(http.MethodOptions),
			"of a page's alone": get("/v1/charges").like(http.MethodOptions).with("Origin", shop),
		} {
			a := w.send(t, c)
			if a.status != w.send(t, get("/v1/charges").like(http.MethodOptions)).status || a.header.Get("Access-Control-Allow-Methods") != "" {
				t.Errorf("%s: status %d, %v", name, a.status, a.header)
			}
		}
		if a := w.send(t, preflight(shop).with("Access-Control-Request-Method")); a.status != http.StatusUnauthorized {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	})
}
