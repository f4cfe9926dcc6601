package httpapi

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// TestCapacity_forgetsWhoHasLeft: callers choose their addresses, so the memory of those that have
// left would have no bound.
func TestCapacity_forgetsWhoHasLeft(t *testing.T) {
	t.Parallel()
	a := newCapacity(2, 1)
	leave, err := a.enter("m", 1)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if a.all != 0 || len(a.of) != 0 {
		t.Errorf("%d places and %v are still taken", a.all, a.of)
	}
}

// TestRates_areRemembered: an attacker with many addresses pushes out others, so memory is bounded,
// and no client of IPv6 has more than one.
func TestRates_areRemembered(t *testing.T) {
	t.Parallel()
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
