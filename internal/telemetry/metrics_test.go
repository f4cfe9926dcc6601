package telemetry_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestRegistry: metrics exist before they count, what a program knows without its database
// is read at each scrape, and two programs of one process, as in tests, share nothing.
func TestRegistry(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	m, _ := registry()
	other, _ := registry()
	receiver, result := telemetry.LabelOf("receiver", "a", "b"), telemetry.LabelOf("result", "done", "lost")
	ended := m.Counter("payonce_ended_total", "Ends.", receiver, result)
	requests := m.Counter("payonce_requests_total", "Requests.", telemetry.Label{Name: "route"})
	lookup := m.Times("payonce_lookup_seconds", "Look-ups.")
	calling := m.Times("payonce_call_seconds", "Calls.", telemetry.LabelOf("call", "GET"))
	m.Database(db)
	want(t, scrape(t, m.Handler()), map[string]float64{
		`payonce_ended_total{receiver="a",result="done"}`:  0,
		`payonce_ended_total{receiver="b",result="lost"}`:  0,
		`payonce_lookup_seconds_count`:                     0,
		`payonce_call_seconds_bucket{call="GET",le="0.1"}`: 0,
		`payonce_db_timeline`:                              1,
	})

	ended.Add(2, "b", "lost")
	requests.Add(1, "/v1/charges")
	end := lookup.Time()
	<-time.After(150 * time.Millisecond)
	end()
	calling.Time("GET")()
	conn, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	defer conn.Release()
	got := scrape(t, m.Handler())
	want(t, got, map[string]float64{
		`payonce_ended_total{receiver="a",result="done"}`:    0,
		`payonce_ended_total{receiver="b",result="lost"}`:    2,
		`payonce_requests_total{route="/v1/charges"}`:        1,
		`payonce_lookup_seconds_bucket{le="0.1"}`:            0,
		`payonce_lookup_seconds_count`:                       1,
		`payonce_call_seconds_count{call="GET"}`:             1,
		`payonce_db_timeline`:                                1,
		`payonce_db_connections{pool="main",state="in_use"}`: 1,
		`payonce_db_connections_max{pool="main"}`:            float64(db.Pool().Config().MaxConns),
		`payonce_late_commits`:                               0,
	})
	for _, name := range []string{`go_goroutines`, `process_resident_memory_bytes`} {
		if got[name] < 1 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	if n, there := scrape(t, other.Handler())[`payonce_ended_total{receiver="b",result="lost"}`]; there {
		t.Errorf("the other program counts %v ends", n)
	}
}

func registry() (*telemetry.Registry, *testrun.Log) {
	log := &testrun.Log{}
	return telemetry.NewRegistry(slog.New(slog.NewTextHandler(log, nil))), log
}

// scrape reads all samples by their names and labels.
func scrape(t *testing.T, h http.Handler) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	found := map[string]float64{}
	for line := range strings.Lines(w.Body.String()) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		testdb.Must(t, err)
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
