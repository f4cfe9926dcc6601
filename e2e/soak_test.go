package e2e_test

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

//nolint:gochecknoglobals // a flag of the tests
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

// carried waits until nothing is left to be done, for as long as it gets less. A
// soak leaves more behind than one patience is enough for.
func (w *world) carried(t *testing.T) {
	t.Helper()
	const open = `
select (select count(*)
          from inbox
         where status not in ('done', 'discarded'))
     + (select count(*)
          from ledger_events
         where type = 'charge.requested.v1')
     - (select count(distinct stream_id)
          from ledger_events
         where type = 'merchant.notified.v1')`
	least, since := int64(-1), time.Now()
	if !within(time.Hour, func() bool {
		left := row[int64](t, w, open)
		if least < 0 || left < least {
			least, since = left, time.Now()
		}
		pause(t.Context(), 200*time.Millisecond) // the question is not for free
		return left == 0 || time.Since(since) > endPatience
	}) || least != 0 {
		t.Fatalf("%d things are still to be done, and for %s it was not less", least, endPatience)
	}
}
