package testrun

import (
	"flag"
	"math/rand/v2"
	"sync"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random choices of a test; each test draws its own where 0")

// Seed returns the number that all random choices of a test come from: that of -seed, or a
// new one. If the test fails, it prints the flags that make the same choices again. Which
// goroutine makes its choice first stays open.
func Seed(tb testing.TB) uint64 {
	tb.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = 1 + rand.Uint64N(1_000_000)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the same choices again: -run '%s' -seed=%d", tb.Name(), seed)
		}
	})
	return seed
}

// Rand returns a source of random choices by [Seed]. Goroutines may share it.
func Rand(tb testing.TB) *rand.Rand {
	tb.Helper()
	return rand.New(&lockedSource{source: rand.NewPCG(Seed(tb), 0)})
}

type lockedSource struct {
	mu     sync.Mutex
	source rand.Source
}

func (s *lockedSource) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source.Uint64()
}
