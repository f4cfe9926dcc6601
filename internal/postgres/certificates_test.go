package postgres_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// TestPool_readsCertificatesAnew: the certificate of the server's authority is renewed while a program
// runs, and half of it is in the file for a moment.
func TestPool_readsCertificatesAnew(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "roots.pem")
	renew := func(serial int64) *x509.CertPool {
		public, private, err := ed25519.GenerateKey(nil)
		testdb.Must(t, err)
		template := &x509.Certificate{SerialNumber: big.NewInt(serial), IsCA: true, BasicConstraintsValid: true}
		der, err := x509.CreateCertificate(nil, template, template, public, private)
		testdb.Must(t, err)
		authority, roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), x509.NewCertPool()
		testdb.Must(t, os.WriteFile(file, authority, 0o600))
		roots.AppendCertsFromPEM(authority)
		return roots
	}
	first := renew(1)
	config, err := postgres.PoolConfig("postgres://payonce@one.example.com,two.example.com/payonce?sslmode=verify-full&sslrootcert=" + file)
	testdb.Must(t, err)
	wantRoots := func(want *x509.CertPool) {
		t.Helper()
		next := config.ConnConfig.Copy()
		testdb.Must(t, config.BeforeConnect(t.Context(), next))
		if !next.TLSConfig.RootCAs.Equal(want) || !next.Fallbacks[0].TLSConfig.RootCAs.Equal(want) {
			t.Error("the next connection trusts other authorities than the file")
		}
	}
	wantRoots(first)
	wantRoots(renew(2))
	testdb.Must(t, os.WriteFile(file, []byte("-----BEGIN"), 0o600))
	wantRoots(first)
}

// TestPool_keepsTheVerification: what a service file says later makes no connection weaker.
func TestPool_keepsTheVerification(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "service.conf")
	testdb.Must(t, os.WriteFile(file, []byte("[p]\nhost=db.example.com\nsslmode=verify-full\n"), 0o600))
	config, err := postgres.PoolConfig("service=p servicefile=" + file)
	testdb.Must(t, err)
	for _, later := range []string{"[p]\n", "[p]\nhost=db.example.com\n", "[p]\nhost=10.0.0.9\nsslmode=disable\n"} {
		testdb.Must(t, os.WriteFile(file, []byte(later), 0o600))
		next := config.ConnConfig.Copy()
		testdb.Must(t, config.BeforeConnect(t.Context(), next))
		if next.Host != "db.example.com" || next.TLSConfig == nil || next.TLSConfig.InsecureSkipVerify || len(next.Fallbacks) > 0 {
			t.Errorf("with %q it connects to %s with %+v, then to %v", later, next.Host, next.TLSConfig, next.Fallbacks)
		}
	}
}
