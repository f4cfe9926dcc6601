package e2e_test

import (
	"flag"
	"fmt"
	"testing"
)

var soak = flag.Bool("soak", false, "TestSoak in its long form, which takes minutes")

// TestSoak does for long what other tests do once, while something is broken all
// the time. Without -soak each of them is short, with -short none is run. In the
// long form give it time, one at a time:
//
//	go test ./e2e -run 'TestSoak/a_key' -soak -timeout 1h -v
func TestSoak(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"a key is one register, whatever is killed":                              soakSameKey,
		"what was acknowledged survives every stop of the database":              soakDatabase,
		"the ledger is the same however often and in whatever order it was told": soakDelivery,
		"charges end while the provider keeps others waiting":                    soakStall,
		"memory stays flat over messages and requests":                           soakMemory,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && !*soak {
				t.Skip("not run: a soak is left out of short tests")
			}
			test(t)
		})
	}
}

// soaked is how much of something there is: the first number in the long form.
func soaked(t *testing.T, what string, long, short int) int {
	t.Helper()
	if *soak {
		return long
	}
	t.Logf("not run: the long form, with %d %s instead of %d (-soak)", long, what, short)
	return short
}

// none says what zero violations in n trials show: with 95% confidence there are
// fewer than 3 in n (the rule of three).
func none(n int, of string) string {
	return fmt.Sprintf("0 violations in %d %s, a bound of 3/n = %.1e", n, of, 3/float64(n))
}
