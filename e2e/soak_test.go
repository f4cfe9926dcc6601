package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"syscall"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
)

var soak = flag.Bool("soak", false, "TestSoak in its long form, which takes minutes")

// TestSoak does for long what other tests do once, while something is broken all
// the time. Without -soak each of them is short; with -short none is run. In the long
// form give it time, one at a time:
//
//	go test ./e2e -run 'TestSoak/a_key' -soak -timeout 1h -v
func TestSoak(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"a key has one answer, whatever is killed":                  soakSameKey,
		"what was acknowledged survives every stop of the database": soakDatabase,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startsPrograms(t)
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

// soakDatabase stops the server again and again while charges flow: at once,
// without a checkpoint, and by SIGKILL of its first process. What was acknowledged
// is requested once more at the end; the invariants require it once.
func soakDatabase(t *testing.T) {
	t.Helper()
	server, on := ownServer(t, local.Options{Fsync: true})
	n, stops := soaked(t, "charges", 10_000, 60), soaked(t, "stops", 60, 2)
	d := deploy(t, setup{apis: 2, workers: 2, on: on})
	mustRead(t, d.tables, "on on on", `select concat_ws(' ', current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'))`)
	f := d.flowing(t, n, 16, visa, cardDeclined, visa)
	for i := range stops {
		f.awaitAnswered(t, (i+1)*n/(stops+1))
		how := "immediate shutdown"
		if i%2 == 1 {
			how = "SIGKILL"
			must(t, syscall.Kill(row[int](t, d.tables, `select split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int`), syscall.SIGKILL))
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		for _, api := range d.APIs { // each accepts again
			acceptedCharge(t, d.insist(t, request{Key: "key-" + unique(), Body: newOrder(visa).body(t), To: func(context.Context) (string, error) { return api.URL(), nil }}))
		}
	}
	f.finish(t, d)
	d.drain(t)
	accepted := n + stops*len(d.APIs)
	mustRead(t, d.tables, fmt.Sprint(accepted, accepted), `
select concat_ws(' ', count(*), count(distinct data ->> 'order_id')) from ledger_events where type = 'charge.requested.v1'`)
	retries := d.client.Unanswered.Load() + d.client.TurnedAway.Load()
	if retries == 0 {
		t.Error("the stops left no request without an answer: they showed nothing")
	}
	t.Logf("%d charges, %d stops (every other one a SIGKILL), %d sendings without a definitive answer", accepted, stops, retries)
	if !t.Failed() {
		t.Logf("none lost, none doubled: %s; %s", none(accepted, "charges"), none(stops, "stops"))
	}
}
