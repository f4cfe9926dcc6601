package httpapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
)

// lines are the access log's.
func (l *transcript) lines(t *testing.T) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for line := range strings.Lines(l.String()) {
		fields := members(t, line)
		if fields["msg"] == "request" {
			lines = append(lines, fields)
		}
	}
	return lines
}

func TestAccessLog(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.send(t, post("key-1", body()).with("X-Request-Id", "req-1"))
	w.send(t, post("key-1", body()).with("X-Request-Id", "req-2"))
	w.send(t, get("/v1/charges/ch_1").with("X-Request-Id", "req-3"))
	w.send(t, get("/nowhere").with("X-Request-Id", "req-4"))
	hash := idempotency.Hash("key-1")
	want := []map[string]any{
		{"method": "POST", "route": "/v1/charges", "status": 202.0, "request_id": "req-1", "key_hash": hash, "replayed": false},
		{"method": "POST", "route": "/v1/charges", "status": 202.0, "request_id": "req-2", "key_hash": hash, "replayed": true},
		{"method": "GET", "route": "/v1/charges/:id", "status": 404.0, "request_id": "req-3"},
		{"method": "GET", "route": "", "status": 404.0, "request_id": "req-4"},
	}
	got := w.log.lines(t)
	for _, line := range got {
		if ms, ok := line["milliseconds"].(float64); !ok || ms < 0 {
			t.Errorf("milliseconds is %v", line["milliseconds"])
		}
		for _, name := range []string{"time", "level", "msg", "milliseconds"} {
			delete(line, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}
