package e2e_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
)

// soakDatabase stops the server again and again while charges flow: at once,
// without a checkpoint, and by SIGKILL of its first process. What was acknowledged
// is requested once more at the end; the invariants require it once.
func soakDatabase(t *testing.T) {
	t.Helper()
	server, on := ownServer(t, local.Options{Fsync: true})
	n, stops := soaked(t, "charges", 10_000, 60), soaked(t, "stops", 60, 2)
	d := deploy(t, setup{apis: 2, workers: 2, on: on})
	mustRead(t, d, "on on on", `select concat_ws(' ', current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'))`)
	f := d.flowing(t, n, 16, visa, cardDeclined, visa)
	for i := range stops {
		f.awaitAnswered(t, (i+1)*n/(stops+1))
		stopServer, how := server.Restart, "immediate shutdown"
		if i%2 == 1 {
			stopServer, how = server.Crash, "SIGKILL"
		}
		if err := stopServer(t.Context()); err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		for _, api := range d.APIs { // each accepts again
			acceptedCharge(t, d.insist(t, request{key: "key-" + unique(), body: newOrder(visa).body(t), to: at(api.URL())}))
		}
	}
	f.finish(t, d)
	d.drain(t)
	accepted := n + stops*len(d.APIs)
	mustRead(t, d, fmt.Sprint(accepted, accepted), `
select concat_ws(' ', count(*), count(distinct data ->> 'order_id')) from ledger_events where type = 'charge.requested.v1'`)
	retries := d.client.retries.Load()
	if retries == 0 {
		t.Error("the stops left no request without an answer: they showed nothing")
	}
	d.sampleKeys(t, 1000)
	t.Logf("%d charges, %d stops (every other one a SIGKILL), %d sendings without a definitive answer", accepted, stops, retries)
	if !t.Failed() {
		t.Logf("none lost, none doubled: %s; %s", none(accepted, "charges"), none(stops, "stops"))
	}
}

// sampleKeys leaves some of the keys for the search of the logs: all of them in all of the logs would take it an hour.
func (d *deployment) sampleKeys(t *testing.T, n int) {
	t.Helper()
	slices.Sort(d.client.keys)
	d.client.keys = slices.Compact(d.client.keys)
	if len(d.client.keys) > n {
		t.Logf("not run: the search for %d of %d keys in the logs", len(d.client.keys)-n, len(d.client.keys))
		d.client.keys = d.client.keys[:n]
	}
}

var soak = flag.Bool("soak", false, "TestSoak in its long form, which takes minutes")

// TestSoak does for long what other tests do once, while something is broken all
// the time. Without -soak each of them is short, with -short none is run. In the
// long form give it time, one at a time:
//
//	go test ./e2e -run 'TestSoak/a_key' -soak -timeout 1h -v
func TestSoak(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"a key has one answer, whatever is killed":                  soakSameKey,
		"what was acknowledged survives every stop of the database": soakDatabase,
		"duplicated and reordered messages leave the same ledger":   soakDelivery,
		"memory stays flat over messages and requests":              soakMemory,
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
