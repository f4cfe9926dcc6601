package fulfillment_test

import (
	"cmp"
	"flag"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
)

var soak = flag.Bool("soak", false, "TestStore in its long form: 10,000 sequences of 100 steps, about half an hour")

// TestStore drives the real store, handlers and inbox by any sequence of requests,
// deliveries, provider faults, deaths, lost leases and sweeps, and compares it
// after every step with a plain model of what should be there.
//
// The long form stops early, and says so, when the time of the test binary ends:
//
//	go test ./fulfillment -run TestStore -soak -timeout 2h -v
func TestStore(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	const shards = 2 // a database each, in which the sequences come one after another
	checks, steps := 10, 30
	if *soak {
		checks, steps = 10_000/shards, 100
	} else {
		t.Logf("not run: the long form, with 10000 sequences of 100 steps instead of %d of %d (-soak)", shards*checks, steps)
	}
	if testing.Short() {
		checks, steps = 3, 20
	}
	for name, value := range map[string]int{"rapid.checks": checks, "rapid.steps": steps} {
		if err := flag.Set(name, strconv.Itoa(value)); err != nil { // as if they were given: rapid has no other way
			t.Fatal(err)
		}
	}
	var count tally
	t.Run("any sequence", func(t *testing.T) {
		t.Parallel()
		for shard := range shards {
			t.Run(fmt.Sprint("in database ", shard), func(t *testing.T) {
				t.Parallel()
				s := newStore(t, &count)
				rapid.Check(t, func(r *rapid.T) {
					if !s.isLate() {
						newMachine(r, s).run(r)
					}
				})
			})
		}
	})
	t.Cleanup(func() {
		n, planned := count.sequences.Load(), int64(shards*checks)
		t.Logf("%d sequences, %d steps, %d charges, %d deliveries to the inbox, %d to handlers, %d of these with a fault of the provider in store, %d deaths, %d zombies; not run: %d of %d sequences",
			n, count.steps.Load(), count.charges.Load(), count.received.Load(), count.handled.Load(), count.disturbed.Load(),
			count.deaths.Load(), count.zombies.Load(), max(planned-n, 0), planned)
		if !t.Failed() {
			t.Logf("0 violations in %d sequences, a bound of 3/n = %.1e", n, 3/float64(cmp.Or(n, 1)))
		}
	})
}

// tally is what all sequences have done.
type tally struct {
	sequences, steps, charges, received, handled, disturbed, deaths, zombies atomic.Int64
}

// store is what many sequences share. Each has a merchant and a receiver of its
// own, so it never meets what others have left.
type store struct {
	*testing.T
	db     *postgres.DB
	bank   *bank
	client *stripe.Client
	tally  *tally
	next   int // number of the next sequence

	afterTx  string // how far the outbox was read
	afterRow int64
}

// isLate tells whether the test binary is about to run out of time. rapid knows it
// too, but reckons with sequences that all take as long.
func (s *store) isLate() bool {
	end, bounded := s.Deadline()
	return bounded && time.Until(end) < time.Minute && *soak
}

func newStore(t *testing.T, count *tally) *store {
	t.Helper()
	s := &store{T: t, db: testdb.Reused(t), bank: newBank(t), tally: count, afterTx: "0"}
	client, err := stripe.New(stripe.Config{SecretKey: "sk_test_1", Base: s.bank.server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s.client = client
	return s
}
