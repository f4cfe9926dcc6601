package testrun

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random choices of a test; each test draws its own where 0")

// Seed returns the number that all random choices of a test come from: that of -seed, or a
// new one. If the test fails, it prints the command that makes the same choices again. Which
// goroutine makes its choice first stays open.
func Seed(tb testing.TB) uint64 {
	tb.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = 1 + rand.Uint64N(1_000_000)
	}
	at := packagePath()
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the same choices again: go test %s -count=1 -run '%s'%s -seed=%d", at, pattern(tb.Name()), setFlags(), seed)
		}
	})
	return seed
}

// Rand returns a source of random choices by [Seed]. Goroutines may share it.
func Rand(tb testing.TB) *rand.Rand {
	tb.Helper()
	return rand.New(&lockedSource{source: rand.NewPCG(Seed(tb), 0)})
}

// Fork returns a source for one goroutine, whose choices depend on no other goroutine.
func Fork(from *rand.Rand) *rand.Rand {
	return rand.New(&lockedSource{source: rand.NewPCG(from.Uint64(), from.Uint64())})
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

// pattern matches one test, or one subtest, in -run.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// setFlags are the flags of this process that the package itself defines, but for the seed.
func setFlags() string {
	var b strings.Builder
	flag.Visit(func(f *flag.Flag) {
		if f.Name != "seed" && !strings.HasPrefix(f.Name, "test.") {
			fmt.Fprintf(&b, " -%s='%s'", f.Name, f.Value)
		}
	})
	return b.String()
}

// packagePath is the package whose tests run, as go test takes it at the module's root.
func packagePath() string {
	here, err := os.Getwd()
	if err != nil {
		return "."
	}
	for root := here; root != filepath.Dir(root); root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return "./" + filepath.ToSlash(strings.TrimPrefix(strings.TrimPrefix(here, root), string(filepath.Separator)))
		}
	}
	return "."
}
