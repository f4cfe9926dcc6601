package keylimit

import (
	"net/netip"
	"testing"
	"time"
)

// TestLimiter: an attacker with many addresses pushes out others, so memory is bounded, and no
// client of IPv6 has more than one.
func TestLimiter(t *testing.T) {
	t.Parallel()
	l := New(1)
	now := time.Unix(1_800_000_000, 0)
	addr := netip.MustParseAddr("10.0.0.0")
	for range networks + 100 {
		l.Count(addr.String(), now)
		addr = addr.Next()
	}
	if n := l.known.Len(); n != networks {
		t.Errorf("%d networks are remembered", n)
	}
	l.Count("2001:db8:0:1::1", now)
	l.Count("", now) // a connection without an address
	for address, refused := range map[string]bool{"2001:db8:0:1::2": true, "2001:db8:0:2::1": false, "10.0.0.0": false, "": true} {
		if l.Refuses(address, now) != refused {
			t.Errorf("%q is refused: %t", address, !refused)
		}
	}
	if l.Refuses("", now.Add(Interval)) {
		t.Error("it is refused after the interval")
	}
	if unlimited := New(0); unlimited.Refuses("", now) {
		t.Error("0 refuses")
	}
}
