package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

func serveTo(t *testing.T, origins ...string) *world {
	t.Helper()
	return serveWith(t, func(api *httpapi.Config) { api.Origins = origins })
}

// allowed are the headers of an answer that are meant for browsers.
func allowed(a answer) map[string][]string {
	found := map[string][]string{}
	for name, values := range a.header {
		if strings.HasPrefix(name, "Access-Control-") {
			list := strings.Split(strings.ReplaceAll(strings.Join(values, ","), " ", ""), ",")
			for i := range list {
				if name == "Access-Control-Expose-Headers" {
					list[i] = http.CanonicalHeaderKey(list[i])
				}
			}
			slices.Sort(list)
			found[name] = list
		}
	}
	return found
}

func TestCORS(t *testing.T) {
	t.Parallel()

	t.Run("off unless set", func(t *testing.T) {
		t.Parallel()
		w := serve(t)
		a := w.send(t, preflight(shop))
		wantProblem(t, w.send(t, preflight(shop)), "/problems/unauthorized")
		b := w.send(t, post("key-1", body()).with("Origin", shop))
		if len(allowed(a)) != 0 || len(allowed(b)) != 0 || b.header.Get("Vary") != "" {
			t.Errorf("%v, %v", a.header, b.header)
		}
	})

	t.Run("a preflight needs no API key and says what may be sent", func(t *testing.T) {
		t.Parallel()
		w := serveTo(t, "https://other.example", shop)
		before := rows(t, w.db)
		a := w.send(t, preflight(shop))
		want := map[string][]string{
			"Access-Control-Allow-Origin":  {shop},
			"Access-Control-Allow-Methods": {"GET", "HEAD", "OPTIONS", "POST"},
			"Access-Control-Allow-Headers": {"Authorization", "Content-Type", "Idempotency-Key", "Prefer", "X-Request-Id"},
			"Access-Control-Max-Age":       {"3600"},
		}
		if diff := cmp.Diff(want, allowed(a)); diff != "" || a.status != http.StatusNoContent {
			t.Errorf("status %d (-want +got):\n%s", a.status, diff)
		}
		if vary := strings.Join(a.header.Values("Vary"), ","); !strings.Contains(vary, "Origin") {
			t.Errorf("Vary is %q", vary)
		}
		wantRows(t, w.db, before, nil)
	})

	t.Run("an answer can be read, with what its headers say", func(t *testing.T) {
		t.Parallel()
		w := serveTo(t, shop)
		want := map[string][]string{
			"Access-Control-Allow-Origin": {shop},
			"Access-Control-Expose-Headers": {
				"Allow", "Idempotency-Expires", "Idempotency-Key", "Idempotent-Replayed", "Link", "Location",
				"Preference-Applied", "Retry-After", "Www-Authenticate", "X-Request-Id",
			},
		}
		for _, c := range []call{
			post("key-1", body()), post("key-1", body()), post("key-1", "{"),
			get("/v1/nothing"), get("/v1/balances").as("nobody"), get("/v1/charges").like(http.MethodPut),
		} {
			a := w.send(t, c.with("Origin", shop))
			if diff := cmp.Diff(want, allowed(a)); diff != "" {
				t.Errorf("%s %s, status %d (-want +got):\n%s", c.method, c.path, a.status, diff)
			}
		}
	})

	t.Run("another origin is not allowed", func(t *testing.T) {
		t.Parallel()
		w := serveTo(t, shop, "https://mug?.example", "https://*.mug.example")
		for _, origin := range []string{
			"https://shop.example.evil", "https://evil.example", "https://eshop.example", "http://shop.example",
			"https://shop.example:8443", "https://Shop.example", "https://shopxexample", "null", "*",
			"https://mugs.example", "https://a.mug.example", "https://a.shop.example",
		} {
			for _, c := range []call{preflight(origin), get("/v1/balances").with("Origin", origin)} {
				if a := w.send(t, c); len(allowed(a)) != 0 {
					t.Errorf("%s by %s: %v", c.method, origin, a.header)
				}
			}
		}
	})

	t.Run("a question that is no preflight is answered as ever", func(t *testing.T) {
		t.Parallel()
		w := serveTo(t, shop)
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
