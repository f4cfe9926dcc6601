package program

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof" //nolint:gosec // it also registers with the default mux, which no program serves
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/net/netutil"
)

const (
	// maxWaiting is how many connections may be without a request; each costs some
	// 20 KiB. maxConnections is how many there may be in all; others wait to be accepted.
	maxWaiting     = 1024
	maxConnections = 4 * maxWaiting

	certificateAge = time.Second // for which a certificate is used before its files are read again
)

// closeOldest returns a Server.ConnState hook. Above most connections that have not sent the
// headers of a request, it closes the one that has been waiting longest: a flood of idle
// connections closes itself, while a request is sent within milliseconds.
func closeOldest(most int) func(net.Conn, http.ConnState) {
	waiting, err := lru.New[net.Conn, struct{}](most + 1)
	if err != nil {
		panic(err) // only a size below one is refused
	}
	return func(conn net.Conn, state http.ConnState) {
		if state != http.StateNew && state != http.StateIdle {
			waiting.Remove(conn)
			return
		}
		waiting.Add(conn, struct{}{})
		if waiting.Len() > most {
			if oldest, _, found := waiting.RemoveOldest(); found {
				_ = oldest.Close()
			}
		}
	}
}

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
		host = addr
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Certificate is the part of a program's settings that says how it serves TLS.
type Certificate struct {
	// File with the certificate, in PEM, by which the program's address serves TLS. It is read again
	// when it has changed. Empty: HTTP without TLS, for a proxy that ends TLS.
	TLSCertFile string `env:"TLS_CERT_FILE"`
	// File with the key of that certificate, in PEM.
	TLSKeyFile string `env:"TLS_KEY_FILE"`
}

// Check refuses one file without the other.
func (c Certificate) Check() error {
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		return errors.New("one of TLS_CERT_FILE and TLS_KEY_FILE is set: set both, or none to serve without TLS")
	}
	return nil
}

// TLS returns what a server needs for TLS 1.2 or newer with the certificate, nil without one. New
// connections get what the files hold a second later at most. Files that cannot be read any more
// are logged, and leave the last certificate in use.
func (c Certificate) TLS(log *slog.Logger) (*tls.Config, error) {
	if c.TLSCertFile == "" {
		return nil, nil
	}
	p := &keyPair{log: log, certFile: c.TLSCertFile, keyFile: c.TLSKeyFile}
	if _, err := p.get(nil); err != nil {
		return nil, fmt.Errorf("TLS_CERT_FILE and TLS_KEY_FILE cannot be used: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: p.get}, nil
}

type keyPair struct {
	log               *slog.Logger
	certFile, keyFile string

	mu          sync.Mutex
	readAt      time.Time
	certificate *tls.Certificate
}

func (p *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.readAt) < certificateAge { //nolint:forbidigo // it decides only when the files are read
		return p.certificate, nil
	}
	p.readAt = time.Now() //nolint:forbidigo // as above
	read, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	switch {
	case err == nil:
		p.certificate = &read
	case p.certificate == nil:
		return nil, err
	default:
		p.log.Error("the certificate of TLS_CERT_FILE cannot be read again, the last one stays in use", "error", err)
	}
	return p.certificate, nil
}
