package postgres_test

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// TestPool_readsCertificatesAnew: the server's certificate and that of its authority are renewed
// while a program runs.
func TestPool_readsCertificatesAnew(t *testing.T) {
	t.Parallel()
	behind, err := url.Parse(testdb.Empty(t))
	testdb.Must(t, err)
	network, server := "tcp", behind.Host
	if folder := behind.Query().Get("host"); folder != "" {
		network, server = "unix", folder+"/.s.PGSQL."+cmp.Or(behind.Query().Get("port"), behind.Port(), "5432")
	}
	var shown atomic.Pointer[tls.Certificate]
	front, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	testdb.Must(t, err)
	t.Cleanup(func() { _ = front.Close() })
	go func() {
		for {
			conn, err := front.Accept()
			if err != nil {
				return
			}
			go overTLS(conn, network, server, &shown)
		}
	}()
	roots := filepath.Join(t.TempDir(), "roots.pem")
	renew := func() {
		certificate, authority := newCertificate(t)
		shown.Store(&certificate)
		testdb.Must(t, os.WriteFile(roots, authority, 0o600))
	}
	renew()
	address := *behind
	address.Host = front.Addr().String()
	address.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {roots}}.Encode()
	db := testdb.OpenAt(t, address.String(), postgres.Options{})
	renew()
	db.Pool().Reset()
	if got := testdb.One[int](t, db.Pool(), `select 1`); got != 1 {
		t.Errorf("read %d", got)
	}
}

// overTLS ends the TLS of a connection to PostgreSQL, and passes on what is inside.
func overTLS(conn net.Conn, network, to string, shown *atomic.Pointer[tls.Certificate]) {
	defer conn.Close()
	request := make([]byte, 8) // SSLRequest
	if _, err := io.ReadFull(conn, request); err != nil {
		return
	}
	if _, err := conn.Write([]byte("S")); err != nil {
		return
	}
	inside := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*shown.Load()}, MinVersion: tls.VersionTLS13})
	server, err := net.Dial(network, to) //nolint:noctx // at once
	if err != nil {
		return
	}
	defer server.Close()
	go func() { _, _ = io.Copy(server, inside); _ = server.Close() }()
	_, _ = io.Copy(inside, server)
}

// newCertificate is one for 127.0.0.1 that is its own authority.
func newCertificate(t *testing.T) (certificate tls.Certificate, authority []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testdb.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	testdb.Must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
