package telemetry_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/telemetry"
)

// clock stands still until it is moved.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time       { return time.Unix(1_800_000_000, c.at.Load()) }
func (c *clock) pass(d time.Duration) { c.at.Add(int64(d)) }

func registry() (*telemetry.Registry, *clock, *await.Log) {
	c, log := &clock{}, &await.Log{}
	return telemetry.NewRegistry(slog.New(slog.NewTextHandler(log, nil)), c.now), c, log
}

// scrape reads all samples by their names and labels.
func scrape(t *testing.T, h http.Handler) map[string]float64 {
	t.Helper()
	code, body := ask(t, h)
	if code != http.StatusOK {
		t.Fatalf("status %d: %s", code, body)
	}
	return samples(t, body)
}

func ask(t *testing.T, h http.Handler) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	return w.Code, w.Body.String()
}

func samples(t *testing.T, text string) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		found[line[:at]] = value
	}
	return found
}

// want compares some of the samples.
func want(t *testing.T, got map[string]float64, samples map[string]float64) {
	t.Helper()
	for name, value := range samples {
		if v, there := got[name]; !there || v != value {
			t.Errorf("%s is %v (%t), want %v", name, v, there, value)
		}
	}
}
