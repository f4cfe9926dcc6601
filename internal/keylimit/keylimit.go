// Package keylimit bounds how many wrong keys a client may try. It is in memory: each process
// allows its own number.
package keylimit

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/payonce/payonce/internal/clientaddr"
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
	known, _ := lru.New[string, *rate.Limiter](networks) // it refuses a size below one alone
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
	if known, ok, _ := l.known.PeekOrAdd(clientaddr.Network(client), fresh); ok {
		return known
	}
	return fresh
}
