package program_test

import (
	"context"
	"io"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
)

func TestLimitMemory_leavesATenthOfTheContainer(t *testing.T) {
	found := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(found)
	const container = 240 << 20
	program.LimitMemory(memlimit.Limit(container))
	if got := debug.SetMemoryLimit(-1); got != 216<<20 {
		t.Errorf("GOMEMLIMIT is %d in a container of %d bytes", got, container)
	}
	t.Setenv("GOMEMLIMIT", "100MiB") // the runtime has read it at the start of the process
	debug.SetMemoryLimit(100 << 20)
	program.LimitMemory(memlimit.Limit(container))
	if got := debug.SetMemoryLimit(-1); got != 100<<20 {
		t.Errorf("a GOMEMLIMIT that was set became %d", got)
	}
}

func TestServeMetrics(t *testing.T) {
	t.Parallel()
	log, lines := logger()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "of ours") })
	go func() { ended <- program.ServeMetrics(ctx, log, "127.0.0.1:0", metrics) }()
	url := "http://" + lines.Field(t, "serving metrics", "addr")
	for path, want := range map[string]string{"/metrics": "of ours", "/debug/pprof/": "goroutine", "/debug/pprof/heap?debug=1": "heap profile", "/nothing": "not found"} {
		if got := body(t, url+path); !strings.Contains(got, want) {
			t.Errorf("%s: %.200s", path, got)
		}
	}
	if err := program.ServeMetrics(ctx, log, strings.TrimPrefix(url, "http://"), metrics); err == nil || !strings.HasPrefix(err.Error(), "METRICS_ADDR ") {
		t.Errorf("an address in use: %v", err)
	}
	stop()
	if err := await.Receive(t, "the end", ended); err != nil {
		t.Error(err)
	}
	if err := program.ServeMetrics(ctx, slog.New(slog.DiscardHandler), "", metrics); err != nil {
		t.Errorf("without an address: %v", err)
	}
}

func body(t *testing.T, url string) string {
	t.Helper()
	text, err := (&served{url: url}).get(t.Context())
	testdb.Must(t, err)
	return text
}
