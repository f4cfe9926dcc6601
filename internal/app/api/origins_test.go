package api_test

import (
	"net/http"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

// TestOrigins: the origins of the setting are let in as they are written, and no
// others.
func TestOrigins(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	server := start(t, true)
	unset(t)
	address, _ := database(t, server, "origins")
	t.Setenv("DATABASE_URL", address)
	t.Setenv("HTTP_ADDR", "127.0.0.1:0")
	asks := func(t *testing.T, p *running, origin string) string {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Origin", origin)
		response, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.Header.Get("Access-Control-Allow-Origin")
	}
	for _, test := range []struct {
		name, setting string
		allowed       []string
	}{
		{"none unless set", "", nil},
		{"one", "https://shop.example", []string{"https://shop.example"}},
		{
			"several", " https://shop.example:8443,http://localhost:3000 ,http://[::1]:3000,",
			[]string{"https://shop.example:8443", "http://localhost:3000", "http://[::1]:3000"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CORS_ORIGINS", test.setting)
			p := run(t)
			defer p.end(t)
			for _, origin := range test.allowed {
				if got := asks(t, p, origin); got != origin {
					t.Errorf("%s: Access-Control-Allow-Origin is %q", origin, got)
				}
			}
			for _, origin := range []string{"https://shop.example.evil", "https://evil.shop.example", "http://shop.example", "https://Shop.example", "null"} {
				if got := asks(t, p, origin); got != "" {
					t.Errorf("%s: Access-Control-Allow-Origin is %q", origin, got)
				}
			}
		})
	}
	t.Run("in plain text where the network is one's own", func(t *testing.T) {
		t.Setenv("CORS_ORIGINS", "http://shop.example")
		t.Setenv("ALLOW_PLAINTEXT", "1")
		p := run(t)
		defer p.end(t)
		if got := asks(t, p, "http://shop.example"); got != "http://shop.example" {
			t.Errorf("Access-Control-Allow-Origin is %q", got)
		}
	})
}
