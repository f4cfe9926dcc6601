package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/telemetry"
)

// TestObserveProvider counts each answer of the provider under one of four results, and
// the replays apart.
func TestObserveProvider(t *testing.T) {
	t.Parallel()
	registry := telemetry.NewRegistry(slog.New(slog.DiscardHandler), time.Now)
	observe := meter(registry).observeProvider(nil, "")
	for status, replayed := range map[int]bool{200: true, 402: false, 429: false, 500: true, 0: false, 302: false} {
		observe(t.Context(), "POST refunds")(stripe.Answered{Status: status, Replayed: replayed})
	}
	w := httptest.NewRecorder()
	registry.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`payonce_provider_requests_total{call="POST refunds",result="ok"} 1`,
		`payonce_provider_requests_total{call="POST refunds",result="refused"} 1`,
		`payonce_provider_requests_total{call="POST refunds",result="failed"} 1`,
		`payonce_provider_requests_total{call="POST refunds",result="unavailable"} 3`,
		`payonce_provider_replays_total{call="POST refunds"} 2`,
		`payonce_provider_request_duration_seconds_count{call="POST refunds"} 6`,
		`payonce_provider_requests_total{call="GET refunds",result="ok"} 0`,
	} {
		if !strings.Contains(w.Body.String(), "\n"+want+"\n") {
			t.Errorf("not served: %s", want)
		}
	}
}
