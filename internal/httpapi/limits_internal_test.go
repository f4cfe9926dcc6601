package httpapi

import (
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// TestAdmission_keepsItsBoundsAndReturnsEverySlot: requests of a few merchants enter, and
// panic while they are in.
func TestAdmission_keepsItsBoundsAndReturnsEverySlot(t *testing.T) {
	t.Parallel()
	const most, share, merchants = 12, 5, 4
	a := newAdmission(most, share)
	var ended, refused atomic.Int64
	request := func(merchant string) {
		defer func() {
			if recover() != nil {
				ended.Add(1)
			}
		}()
		leave, err := a.enter(merchant)
		if err != nil {
			refused.Add(1)
			return
		}
		defer leave()
		a.mu.Lock()
		if a.all > most || a.of[merchant] > share {
			t.Errorf("%d are admitted, %d of one merchant", a.all, a.of[merchant])
		}
		a.mu.Unlock()
		runtime.Gosched()
		panic("planted")
	}
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			for range 200 {
				request("m" + strconv.Itoa(i%merchants))
			}
		})
	}
	all.Wait()
	if ended.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d ended, %d were refused", ended.Load(), refused.Load())
	}
	if a.all != 0 || len(a.of) != 0 {
		t.Errorf("%d places and %v are still taken", a.all, a.of)
	}
}

// TestGuessers_areBoundedInMemory: an attacker with many addresses pushes out others, and no
// client of IPv6 has more than one.
func TestGuessers_areBoundedInMemory(t *testing.T) {
	t.Parallel()
	guessers, err := lru.New[string, *rate.Limiter](maxGuessers)
	if err != nil {
		t.Fatal(err)
	}
	a := &API{Config: Config{Limits: Limits{Guesses: 1}}, guessers: guessers}
	now := time.Unix(1_800_000_000, 0)
	addr := netip.MustParseAddr("10.0.0.0")
	for range maxGuessers + 100 {
		a.guesser(addr).AllowN(now, 1)
		addr = addr.Next()
	}
	if n := guessers.Len(); n != maxGuessers {
		t.Errorf("%d addresses are remembered", n)
	}
	a.guesser(netip.MustParseAddr("2001:db8:0:1::1")).AllowN(now, 1)
	a.guesser(netip.Addr{}).AllowN(now, 1) // a connection without an address
	for _, test := range []struct {
		address   netip.Addr
		exhausted bool
	}{
		{netip.MustParseAddr("2001:db8:0:1::2"), true},
		{netip.MustParseAddr("2001:db8:0:2::1"), false},
		{netip.MustParseAddr("10.0.0.0"), false},
		{netip.Addr{}, true},
	} {
		if exhausted := a.guesser(test.address).TokensAt(now) < 1; exhausted != test.exhausted {
			t.Errorf("%s is exhausted: %t", test.address, exhausted)
		}
	}
}
