package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
)

// TestEveryAnswerHasTheRequestIDOfItsLogLine: the caller's own id, or else one of
// ours, is in every answer and in the line that is logged for it.
func TestEveryAnswerHasTheRequestIDOfItsLogLine(t *testing.T) {
	t.Parallel()
	w := serve(t)
	browsers := serveWith(t, func(api *httpapi.Config) { api.Origins = []string{shop} })
	for name, test := range map[string]struct {
		w      *world
		call   call
		status int
	}{
		"what is accepted, and its replay": {w, post("key-1", body()), http.StatusAccepted},
		"health":                           {w, get("/healthz"), http.StatusOK},
		"no API key":                       {w, get("/v1/balances").with("Authorization"), http.StatusUnauthorized},
		"no such path":                     {w, get("/nowhere"), http.StatusNotFound},
		"a large body":                     {w, post("key-2", padded(maxBody+1)), http.StatusRequestEntityTooLarge},
		"a preflight":                      {browsers, preflight(shop), http.StatusNoContent},
	} {
		t.Run(name, func(t *testing.T) {
			wantLogged(t, test.w, test.call.with("X-Request-Id", "req-"+strings.ReplaceAll(name, " ", "_")), true, test.status)
			wantLogged(t, test.w, test.call, false, test.status)
		})
	}
	w.api.Close()
	wantLogged(t, w, get("/v1/balances").with("X-Request-Id", "req-of-mine"), true, http.StatusServiceUnavailable)
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for name, test := range map[string]struct {
		id   string
		kept bool
	}{
		"a short visible line":   {"req-1/A:b", true},
		"128 characters":         {strings.Repeat("r", 128), true},
		"an empty one":           {"", false},
		"129 characters":         {strings.Repeat("r", 129), false},
		"a space":                {"req 1", false},
		"a card number":          {"4242-4242-4242-4242", false},
		"what is not ASCII":      {"réq", false},
		"what is not even UTF-8": {"req\xff", false},
	} {
		t.Run(name, func(t *testing.T) {
			wantLogged(t, w, get("/v1/balances").with("X-Request-Id", test.id), test.kept, http.StatusOK)
			if !test.kept && test.id != "" && strings.Contains(w.log.String(), test.id) {
				t.Error("an id that was refused is logged")
			}
		})
	}
	w.send(t, post("key-1", body()).with("X-Request-Id", "req-42"))
	await.Row(t, w.db, `select count(*) = 1 from ledger_events where metadata::text like '%req-42%'`)
}

// wantLogged sends a call whose id is kept or replaced, and finds the id of the
// answer in the log.
func wantLogged(t *testing.T, w *world, c call, kept bool, status int) {
	t.Helper()
	a := w.send(t, c)
	got := a.header.Values("X-Request-Id")
	if a.status != status || len(got) != 1 {
		t.Fatalf("status %d, want %d; X-Request-Id %q: %s", a.status, status, got, a.body)
	}
	if kept != (got[0] == c.header.Get("X-Request-Id")) || !kept && uuid.Validate(got[0]) != nil {
		t.Errorf("X-Request-Id is %q, sent was %q", got, c.header.Get("X-Request-Id"))
	}
	for _, line := range w.log.lines(t) {
		if line["request_id"] == got[0] && line["status"] == float64(status) {
			return
		}
	}
	t.Errorf("no line has %q and %d:\n%s", got, status, w.log)
}
