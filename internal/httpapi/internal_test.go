package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
)

// SetRequestTimeout bounds what a request waits for.
func SetRequestTimeout(d time.Duration) { requestTimeout = d }

// ClientBehind finds the address of a client behind proxies.
func ClientBehind(proxies []netip.Prefix) echo.IPExtractor { return clientBehind(proxies) }

// HoldsCard reports whether a text holds what may be a card number.
func HoldsCard(s string) bool { return holdsCard(s) }

// Problem is a refusal.
type Problem = problem //nolint:errname // the name in the contract

// Canonical is the form in which the body of a charge is fingerprinted.
func Canonical(body string) (string, error) {
	r := &http.Request{Header: http.Header{echo.HeaderContentType: {echo.MIMEApplicationJSON}}}
	c := echo.New().NewContext(r, nil)
	c.Set(exchangeKey, &exchange{body: []byte(body)})
	charge, err := decode(c, (&API{}).validate)
	canonical, _ := json.Marshal(charge)
	return string(canonical), err
}

// TestClassify_unknown: after a commit of unknown outcome, a refusal of the next try is not the answer of the request.
func TestClassify_unknown(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{intake.ErrExpiresInPast, &intake.OrderTakenError{}, errConflict} {
		if p := (&API{}).classify(fmt.Errorf("%w: %w", idempotency.ErrUnknown, refusal)); p.Type != errUnavailable.Type || !p.Retryable {
			t.Errorf("%v is %s", refusal, p.Type)
		}
	}
}

// TestPreferredWait: what is not understood is no wait.
func TestPreferredWait(t *testing.T) {
	t.Parallel()
	for prefer, want := range map[string]time.Duration{
		"wait=10": 10, "wait=3600": 10, `respond-async, Wait = "9" ; x=y, return=minimal`: 9, "wait=2, wait=3": 2,
		"wait=0": 0, "wait=soon": 0, "wait=-1": 0, "return=minimal": 0, "wait": 0, "wait=99999999999": 0,
	} {
		if got := preferredWait([]string{prefer}); got != want*time.Second {
			t.Errorf("%s: %s, want %d s", prefer, got, want)
		}
	}
}

// TestLimits_rememberFew: callers choose their addresses. Of requests that have ended nothing is kept, an attacker
// with many addresses pushes out others, and no client of IPv6 has more than one.
func TestLimits_rememberFew(t *testing.T) {
	t.Parallel()
	a := newCapacity(2, 1)
	if err := a.within("m", 1, func() error { return nil }); err != nil || a.all != 0 || len(a.of) != 0 {
		t.Errorf("%v; %d places and %v are still taken", err, a.all, a.of)
	}
	r, now := newRates(rate.Every(guessInterval), 1), time.Unix(1_800_000_000, 0)
	addr := netip.MustParseAddr("10.0.0.0")
	for range remembered + 100 {
		r.allow(network(addr), now)
		addr = addr.Next()
	}
	if n := r.of.Len(); n != remembered {
		t.Errorf("%d networks are remembered", n)
	}
	r.allow(network(netip.MustParseAddr("2001:db8:0:1::1")), now)
	for address, used := range map[string]bool{"2001:db8:0:1::2": true, "2001:db8:0:2::1": false, "10.0.0.0": false} {
		if r.used(network(netip.MustParseAddr(address)), now) != used {
			t.Errorf("%q is refused: %t", address, !used)
		}
	}
	if r.used("2001:db8:0:1::/64", now.Add(guessInterval)) {
		t.Error("it is refused after the interval")
	}
	if newRates(1, 0).used("", now) {
		t.Error("0 refuses")
	}
}
