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
	"github.com/payonce/payonce/internal/stripe"
)

const (
	mockModule  = "github.com/stripe/stripe-mock"
	mockVersion = "v0.203.0"
)

// TestStripeMock sends every call to stripe-mock, which checks requests against
// Stripe's own description of the API and answers from its fixtures. It keeps no
// state, so this shows that what we send and read has Stripe's shape, and
// nothing about behavior.
func TestStripeMock(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not run: stripe-mock is left out by -short")
	}
	base := startMock(t, mockBinary(t))
	c := newClient(t, base, 0)

	t.Run("create", func(t *testing.T) {
		t.Parallel()
		in, err := c.CreateIntent(t.Context(), "evt_1", stripe.CreateParams{
			Reference: "ch_1", Amount: 1999, Currency: "EUR", PaymentMethod: "pm_card_visa", Description: "order 7",
		})
		if err != nil {
			t.Fatal(err)
		}
		if in.ID == "" || in.Amount != 1999 || in.Currency != "EUR" {
			t.Errorf("intent is %+v", in)
		}
	})
	t.Run("confirm, retrieve and cancel", func(t *testing.T) {
		t.Parallel()
		for name, call := range map[string]func(context.Context) (stripe.Intent, error){
			"confirm":  func(ctx context.Context) (stripe.Intent, error) { return c.ConfirmIntent(ctx, "evt_2", "pi_1") },
			"retrieve": func(ctx context.Context) (stripe.Intent, error) { return c.RetrieveIntent(ctx, "pi_1") },
			"cancel":   func(ctx context.Context) (stripe.Intent, error) { return c.CancelIntent(ctx, "pi_1") },
		} {
			if in, err := call(t.Context()); err != nil || in.ID != "pi_1" || in.Status == "" {
				t.Errorf("%s: intent is %+v, %v", name, in, err)
			}
		}
	})
	t.Run("refund", func(t *testing.T) {
		t.Parallel()
		r, err := c.CreateRefund(t.Context(), "evt_3", refundParams("pi_1"))
		if err != nil || r.ID == "" || r.PaymentIntent != "pi_1" || r.Amount != 500 {
			t.Errorf("create: refund is %+v, %v", r, err)
		}
		if r, err := c.RetrieveRefund(t.Context(), "re_1"); err != nil || r.ID != "re_1" {
			t.Errorf("retrieve: refund is %+v, %v", r, err)
		}
	})
	t.Run("lists", func(t *testing.T) {
		t.Parallel()
		var intents, refunds, refundsOf int
		for in, err := range c.Intents(t.Context()) {
			if err != nil || in.ID == "" {
				t.Fatalf("intents: %+v, %v", in, err)
			}
			intents++
		}
		for r, err := range c.Refunds(t.Context()) {
			if err != nil || r.ID == "" {
				t.Fatalf("refunds: %+v, %v", r, err)
			}
			refunds++
		}
		for r, err := range c.RefundsOf(t.Context(), "pi_1") {
			if err != nil || r.ID == "" {
				t.Fatalf("refunds of an intent: %+v, %v", r, err)
			}
			refundsOf++
		}
		if intents == 0 || refunds == 0 || refundsOf == 0 {
			t.Errorf("%d intents, %d refunds, %d refunds of an intent; want some of each", intents, refunds, refundsOf)
		}
	})
	t.Run("the mock does refuse what Stripe would", func(t *testing.T) {
		t.Parallel()
		for _, form := range []url.Values{{"charge_id": {"ch_1"}}, {"error_on_requires_action": {"perhaps"}}} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/payment_intents/pi_1/confirm", strings.NewReader(form.Encode()))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+secretKey)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
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
