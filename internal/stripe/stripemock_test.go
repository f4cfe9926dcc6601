//go:build unix

package stripe_test

import (
	"bufio"
	"context"
	"debug/buildinfo"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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
			if err := res.Body.Close(); err != nil {
				t.Error(err)
			}
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
func startMock(t *testing.T, binary string) string {
	t.Helper()
	// Not bound to the test's context: that ends before the group is killed.
	mock := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "-http-addr", "127.0.0.1:0", "-https-addr", "127.0.0.1:0")
	mock.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := mock.StdoutPipe()
	testdb.Must(t, err)
	if err := mock.Start(); err != nil {
		t.Fatalf("start stripe-mock: %v", err)
	}
	origin := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if address, ok := strings.CutPrefix(lines.Text(), "Listening for HTTP at address: "); ok {
				origin <- "http://" + address
			}
		}
	}()
	t.Cleanup(func() {
		if err := syscall.Kill(-mock.Process.Pid, syscall.SIGKILL); err != nil {
			t.Errorf("kill stripe-mock: %v", err)
		}
		<-done
		_ = mock.Wait()
	})
	select {
	case o := <-origin:
		return o
	case <-done:
		t.Fatal("stripe-mock ended before it listened")
	case <-time.After(await.Stall):
		t.Fatalf("stripe-mock does not listen after %v", await.Stall)
	}
	return ""
}
