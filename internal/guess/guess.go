// Package guess bounds how many wrong keys a client may try. It is in memory: each process
// allows its own number.
package guess

import (
	"net/netip"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// Interval is the time after which a network may try one more wrong key.
const Interval = 6 * time.Second

const networks = 10_000 // that are remembered: about two megabytes

// Limiter counts wrong keys by the network of the client.
type Limiter struct {
	burst int
	known *lru.Cache[string, *rate.Limiter]
}

// New makes a limiter that allows burst wrong keys at once; 0 allows any number.
func New(burst int) *Limiter {
	known, err := lru.New[string, *rate.Limiter](networks)
	if err != nil {
		panic(err) // only a size below one is refused
	}
	return &Limiter{burst: burst, known: known}
}

// Refuses reports whether a client has sent too many wrong keys.
func (l *Limiter) Refuses(client string, now time.Time) bool {
	return l.burst > 0 && l.of(client).TokensAt(now) < 1
}

// Count counts a wrong key of a client.
func (l *Limiter) Count(client string, now time.Time) { l.of(client).AllowN(now, 1) }

func (l *Limiter) of(client string) *rate.Limiter {
	fresh := rate.NewLimiter(rate.Every(Interval), l.burst)
	if known, ok, _ := l.known.PeekOrAdd(Network(client), fresh); ok {
		return known
	}
	return fresh
}

// Network returns an IPv4 address as it is, and of an IPv6 address the /64 that one client has.
func Network(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil && ip.Is6() && !ip.Is4In6() {
		network, _ := ip.WithZone("").Prefix(64)
		return network.String()
	}
	return address
}
