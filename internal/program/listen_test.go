package program_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

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

// writeCertificate writes a new certificate for 127.0.0.1, and returns its serial number.
func writeCertificate(t *testing.T, certFile, keyFile string) *big.Int {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testdb.Must(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(math.MaxInt64))
	testdb.Must(t, err)
	template := &x509.Certificate{SerialNumber: serial, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	testdb.Must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	testdb.Must(t, err)
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: certificate}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		testdb.Must(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	}
	return serial
}

// handshake returns the serial number of the certificate that a new connection gets.
func handshake(t *testing.T, addr string) *big.Int {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", addr)
	testdb.Must(t, err)
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber //nolint:forcetypeassert // by tls.Dialer
}

func TestTLS_readsItsFilesAgain(t *testing.T) {
	t.Parallel()
	log, lines := logger()
	certFile, keyFile := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	files := program.Certificate{TLSCertFile: certFile, TLSKeyFile: keyFile}
	if _, err := files.TLS(log); err == nil || !strings.HasPrefix(err.Error(), "TLS_CERT_FILE and TLS_KEY_FILE cannot be used: ") {
		t.Errorf("without files: %v", err)
	}
	first := writeCertificate(t, certFile, keyFile)
	config, err := files.TLS(log)
	testdb.Must(t, err)
	addr := serve(t, patience, &http.Server{TLSConfig: config, ReadHeaderTimeout: patience}).addr
	if got := handshake(t, addr); got.Cmp(first) != 0 {
		t.Errorf("the certificate is %d, want %d", got, first)
	}
	second := writeCertificate(t, certFile, keyFile)
	await.True(t, "the new certificate is used", func() bool { return handshake(t, addr).Cmp(second) == 0 })
	testdb.Must(t, os.Remove(certFile))
	await.True(t, "the failure is logged", func() bool {
		return handshake(t, addr).Cmp(second) == 0 && strings.Contains(lines.String(), "the last one stays in use")
	})
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

// TestServe_closesTheOldestOfTooManyIdleConnections: more connections than may wait neither
// keep a request out, nor stay.
func TestServe_closesTheOldestOfTooManyIdleConnections(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	s := serve(t, patience, &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(begun)
			<-release
		}
		_, _ = io.WriteString(w, "served")
	})})
	answer := make(chan string, 1)
	go func() { answer <- body(t, s.url+"/slow") }()
	<-begun
	var idle []net.Conn
	for range program.MaxWaiting + 20 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.addr)
		testdb.Must(t, err)
		defer func() { _ = conn.Close() }()
		idle = append(idle, conn)
	}
	for i, conn := range idle[:20] {
		testdb.Must(t, conn.SetReadDeadline(time.Now().Add(patience)))
		if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Errorf("idle connection %d is not closed: %v", i, err)
		}
	}
	if got := body(t, s.url); got != "served" {
		t.Errorf("a request beside them: %q", got)
	}
	close(release)
	if got := <-answer; got != "served" {
		t.Errorf("the request in flight: %q", got)
	}
}
