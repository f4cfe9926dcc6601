package httpapi_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
)

// A browser that was led here by another site's name asks for that site's host.
func TestDocs_areServedUnderTheirHostsAlone(t *testing.T) {
	t.Parallel()
	served := serveBare(t, func(*http.Server) {}, func(c *httpapi.Config) { c.DocsHosts = []string{"pay.example", "::1"} })
	none := serveBare(t, func(*http.Server) {}, func(c *httpapi.Config) { c.DocsHosts = nil })
	for host, status := range map[string]int{
		"pay.example": 200, "PAY.example:8080": 200, "[::1]:8080": 200, "[::1]": 200,
		"rebound.example": 404, "pay.example.rebound.example": 404, "127.0.0.1:8080": 404,
	} {
		for _, path := range []string{"/docs", "/docs/page.js"} {
			sent := "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
			if a := readAnswer(t, bufio.NewReader(served.dial(t, sent))); a.status != status {
				t.Errorf("%s of %s: status %d, want %d", path, host, a.status, status)
			}
			if a := readAnswer(t, bufio.NewReader(none.dial(t, sent))); a.status != http.StatusNotFound {
				t.Errorf("%s of %s where no host is allowed: status %d", path, host, a.status)
			}
		}
	}
}

func TestDocs_refuseReadersAboveTheirNumber(t *testing.T) {
	t.Parallel()
	w := serveBare(t, func(*http.Server) {}, func(c *httpapi.Config) { c.Limits.Assets = 2 })
	const bundle = "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
	for range 2 {
		w.dial(t, strings.Repeat(bundle, 20)) // more than the kernel keeps, and nothing is read
	}
	await.Progress(t, "two files are being sent", func() (string, bool) {
		a := w.send(t, get("/docs"))
		return a.body, a.status == http.StatusServiceUnavailable
	})
	w.read(t, get("/healthz"))
	w.read(t, get("/v1/balances"))
}
