package fulfillment_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
)

// TestKeys_areBounded: each failure that the provider may have saved opens a key, up to
// domain.MaxKeys. From then on nothing is recorded, so the stream does not grow for as long as the
// provider fails, and the last key is sent until the provider has forgotten what it saved.
func TestKeys_areBounded(t *testing.T) {
	testdb.Long(t, "it delivers a message often")
	t.Parallel()
	const failures = domain.MaxKeys + 3
	for op, test := range map[string]struct {
		begin func(*fixture)
		read  script // what is asked before each call
		works script
	}{
		"create": {
			begin: isAccepted,
			works: script{"create": {shows("requires_confirmation")}, "confirm": {shows("succeeded")}},
		},
		"confirm": {
			begin: isStarted,
			read:  script{"retrieve": {shows("requires_confirmation")}},
			works: script{"retrieve": {shows("requires_confirmation")}, "confirm": {shows("succeeded")}},
		},
		"refund": {
			begin: isOlder,
			read:  script{"refunds": {lists()}},
			works: script{"refunds": {lists()}, "refund": {gives("succeeded")}},
		},
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			test.begin(f)
			for i := range failures {
				if i == failures-1 {
					f.retryAsDeadLetter()
				}
				f.provider.on("retrieve", shows("succeeded")) // a call that is answered keeps the circuit breaker closed
				_, err := f.client.RetrieveIntent(t.Context(), "pi_1")
				testdb.Must(t, err)
				f.play(test.read)
				f.provider.on(op, breaks())
				f.expectEnd(f.deliver(), "waits")
			}
			f.play(test.works)
			f.expectEnd(f.deliver(), "done")
			f.expectText(strconv.Itoa(domain.MaxKeys-1), `select count(*)::text from ledger_events where type like '%.attempt_failed.v1'`)
			keys := f.provider.keys(op)
			if used := slices.Compact(slices.Clone(keys)); len(keys) != failures+1 || len(used) != domain.MaxKeys {
				t.Errorf("%d calls had %d keys, want %d with %d", len(keys), len(used), failures+1, domain.MaxKeys)
			}
		})
	}
}

// play adds a script to the provider's.
func (f *fixture) play(s script) {
	for op, answers := range s {
		f.provider.on(op, answers...)
	}
}

// retryAsDeadLetter makes a dead letter of the waiting message, which an operator then retries.
func (f *fixture) retryAsDeadLetter() {
	f.t.Helper()
	f.exec(`update inbox set status = 'dead', waiting_since = null`)
	dead, err := inbox.List(f.t.Context(), f.db, inbox.StatusDead, 0, 10)
	if err != nil || len(dead) != 1 {
		f.t.Fatalf("%d messages are dead letters: %v", len(dead), err)
	}
	testdb.Must(f.t, inbox.Retry(f.t.Context(), f.db, dead[0].Number, "ann"))
}
