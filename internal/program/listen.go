package program

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof" //nolint:gosec // it also registers with the default mux, which no program serves
	"strings"
	"time"

	"golang.org/x/net/netutil"
)

// maxConnections is how many connections a listener has; others wait to be accepted. Each costs
// some 20 KiB.
const maxConnections = 4096

// Listen listens on the address of a setting, for a bounded number of connections.
func Listen(ctx context.Context, setting, addr string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s %s cannot be listened on: %w", setting, addr, err)
	}
	return netutil.LimitListener(listener, maxConnections), nil
}

// ServeMetrics serves metrics at /metrics and Go's profiles at /debug/pprof/ on METRICS_ADDR
// until ctx ends. Without an address it does nothing.
func ServeMetrics(ctx context.Context, log *slog.Logger, addr string, metrics http.Handler) error {
	if addr == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	listener, err := Listen(ctx, "METRICS_ADDR", addr)
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "serving metrics", "addr", listener.Addr().String())
	server := &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: time.Minute} // a profile takes half of it
	return serve(ctx, log, listener, server, DrainTime)
}

// Local reports whether a host, or the host of an address, is reached from this machine alone.
func Local(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.Trim(addr, "[]") // of an address of IPv6
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
