package failpoint_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testrun"
)

func TestGate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		side   failpoint.Side
		fault  failpoint.Fault
		status int // 0 where the connection ends
		calls  int64
	}{
		"nothing":           {"", failpoint.None, http.StatusCreated, 1},
		"cut before":        {failpoint.Before, failpoint.Cut, 0, 0},
		"cut after":         {failpoint.After, failpoint.Cut, 0, 1},
		"broken before":     {failpoint.Before, failpoint.Broken, http.StatusInternalServerError, 0},
		"broken after":      {failpoint.After, failpoint.Broken, http.StatusInternalServerError, 1},
		"unavailable after": {failpoint.After, "503", http.StatusServiceUnavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				w.Header().Set("X-Outside", r.Header.Get("Idempotency-Key"))
				w.WriteHeader(http.StatusCreated)
				_, _ = io.Copy(w, r.Body)
			}))
			defer outside.Close()
			gate, err := failpoint.NewGate(outside.URL, func() failpoint.CallHook {
				return func(c *failpoint.Call) failpoint.Fault {
					if c.Side != test.side {
						return failpoint.None
					}
					return test.fault
				}
			})
			testrun.Must(t, err)
			defer gate.Close()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gate.URL+"/v1/refunds/re_1", strings.NewReader("money"))
			testrun.Must(t, err)
			request.Header.Set("Idempotency-Key", "k1")
			status := 0
			if response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request); err == nil {
				defer func() { _ = response.Body.Close() }()
				status = response.StatusCode
				body, _ := io.ReadAll(response.Body)
				if status == http.StatusCreated && (string(body) != "money" || response.Header.Get("X-Outside") != "k1") {
					t.Errorf("forwarded %q and %q", body, response.Header)
				}
			}
			if status != test.status || calls.Load() != test.calls {
				t.Errorf("answered %d after %d calls", status, calls.Load())
			}
		})
	}
}
