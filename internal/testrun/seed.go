package testrun

import (
	"flag"
	"math/rand/v2"
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

// Rand returns a source of random choices by [Seed], for one goroutine at a time.
func Rand(tb testing.TB) *rand.Rand {
	tb.Helper()
	return rand.New(rand.NewPCG(Seed(tb), 0))
}
