package stripe_test

import (
	"debug/buildinfo"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

const (
	mockModule  = "github.com/stripe/stripe-mock"
	mockVersion = "v0.203.0"
)

// TestStripeMock sends every call to stripe-mock, which checks requests against
// Stripe's own description of the API and answers from its fixtures. It keeps no
// state, so this test shows that requests and answers have Stripe's shape, and
// nothing about behavior.
func TestStripeMock(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not run: stripe-mock is left out by -short")
	}
	base := startMock(t, mockBinary(t))
	c := newClient(t, base, 0)

	for name, call := range calls(c) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if zero, err := call(t.Context()); err != nil || zero {
				t.Errorf("the value is zero: %t, %v", zero, err)
			}
		})
	}
	t.Run("the mock refuses what Stripe refuses", func(t *testing.T) {
		t.Parallel()
		for _, form := range []url.Values{{"charge_id": {"ch_1"}}, {"error_on_requires_action": {"perhaps"}}} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/payment_intents/pi_1/confirm", strings.NewReader(form.Encode()))
			testdb.Must(t, err)
			r.Header.Set("Authorization", "Bearer "+secretKey)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			res, err := http.DefaultClient.Do(r)
			testdb.Must(t, err)
			testdb.Must(t, res.Body.Close())
			if res.StatusCode != http.StatusBadRequest {
				t.Errorf("%s: answered %d, want 400: this mock checks nothing", form.Encode(), res.StatusCode)
			}
		}
	})
}

// mockBinary finds stripe-mock of the pinned version on PATH, or builds it
// through the module proxy.
func mockBinary(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("stripe-mock"); err == nil {
		if info, err := buildinfo.ReadFile(path); err == nil && info.Main.Path == mockModule && info.Main.Version == mockVersion {
			return path
		}
	}
	bin := t.TempDir()
	install := exec.CommandContext(t.Context(), "go", "install", mockModule+"@"+mockVersion)
	install.Env = append(os.Environ(), "GOBIN="+bin, "GOFLAGS=")
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("not run: stripe-mock could not be installed: %v\n%s", err, out)
	}
	return filepath.Join(bin, "stripe-mock")
}

// startMock runs stripe-mock on free loopback ports until the test ends, and
// returns its origin.
func startMock(t *testing.T, binary string) (origin string) {
	t.Helper()
	said := &await.Log{}
	mock := exec.CommandContext(t.Context(), binary, "-http-addr", "127.0.0.1:0", "-https-addr", "127.0.0.1:0")
	mock.Stdout = said
	testdb.Must(t, mock.Start())
	t.Cleanup(func() { _ = mock.Wait() }) // it is killed
	await.Progress(t, "stripe-mock listens", func() (string, bool) {
		_, after, _ := strings.Cut(said.String(), "Listening for HTTP at address: ")
		address, _, whole := strings.Cut(after, "\n")
		origin = "http://" + address
		return said.String(), whole
	})
	return origin
}
