package failpoint_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestGate(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		side   failpoint.Side
		fault  failpoint.Fault
		status int // 0 where the connection ends
		calls  int64
	}{
		{name: "nothing is planned", status: http.StatusCreated, calls: 1},
		{"killed before", failpoint.Before, failpoint.Kill, 0, 0},
		{"killed after", failpoint.After, failpoint.Kill, 0, 1},
		{"cut before", failpoint.Before, failpoint.Cut, 0, 0},
		{"cut after", failpoint.After, failpoint.Cut, 0, 1},
		{"paused", failpoint.After, failpoint.Pause, http.StatusCreated, 1},
		{"broken before", failpoint.Before, failpoint.Broken, http.StatusInternalServerError, 0},
		{"broken after", failpoint.After, failpoint.Broken, http.StatusInternalServerError, 1},
		{"unavailable after", failpoint.After, failpoint.Unavailable, http.StatusServiceUnavailable, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				w.Header().Set("X-Outside", r.Header.Get("Idempotency-Key"))
				w.WriteHeader(http.StatusCreated)
				_, _ = io.Copy(w, r.Body)
			}))
			defer outside.Close()
			watch := failpoint.NewWatch()
			gate, err := failpoint.NewGate(t.Context(), outside.URL, watch, nil)
			testdb.Must(t, err)
			defer gate.Close()
			point := failpoint.Point{Name: "POST /v1/refunds/:id", Occurrence: 1}
			plan := failpoint.NewPlan(failpoint.Aim{Point: point, Side: test.side, Fault: test.fault}, failpoint.Known{}, nil)
			watch.Set(plan)

			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gate.URL()+"/v1/refunds/re_1", strings.NewReader("money"))
			testdb.Must(t, err)
			request.Header.Set("Idempotency-Key", "k1")
			transport := &http.Transport{DisableKeepAlives: true}
			response, err := transport.RoundTrip(request)
			status := 0
			if err == nil {
				defer func() { _ = response.Body.Close() }()
				status = response.StatusCode
				body, _ := io.ReadAll(response.Body)
				if status == http.StatusCreated && (string(body) != "money" || response.Header.Get("X-Outside") != "k1") {
					t.Errorf("forwarded %q and %q", body, response.Header)
				}
			}
			if status != test.status || calls.Load() != test.calls || plan.Fired() != (test.side != "") {
				t.Errorf("answered %d (%v) after %d calls, fired %v", status, err, calls.Load(), plan.Fired())
			}
			if points := plan.Points(); len(points) != 1 || points[0].Point != point || points[0].Kind != failpoint.HTTP {
				t.Errorf("points: %+v", points)
			}
		})
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }
