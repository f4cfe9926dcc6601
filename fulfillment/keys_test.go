package fulfillment_test

import (
	"fmt"
	"net/http"
	"slices"
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
	repeated := func(answer http.HandlerFunc, n int) []http.HandlerFunc {
		return slices.Repeat([]http.HandlerFunc{answer}, n)
	}
	const failures = domain.MaxKeys + 3
	for op, test := range map[string]struct {
		begin func(*fixture)
		reads string // what is asked before each call
		read  http.HandlerFunc
		works script
		event string
	}{
		"create": {
			begin: isAccepted, works: script{"create": {shows("requires_confirmation")}, "confirm": {shows("succeeded")}},
			event: "payment.attempt_failed.v1",
		},
		"confirm": {
			begin: isStarted, reads: "retrieve", read: shows("requires_confirmation"), works: script{"confirm": {shows("succeeded")}},
			event: "payment.attempt_failed.v1",
		},
		"refund": {
			begin: isOlder, reads: "refunds", read: lists(), works: script{"refund": {gives("succeeded")}},
			event: "refund.attempt_failed.v1",
		},
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			test.begin(f)
			f.provider.on(op, repeated(breaks(), failures)...)
			for i := range failures {
				if i == failures-1 { // an operator retries a dead letter
					f.exec(`update inbox set status = 'dead', waiting_since = null, finished_at = null`)
					dead, err := inbox.List(t.Context(), f.db, inbox.StatusDead, 0, 10)
					testdb.Must(t, err)
					testdb.Must(t, inbox.Retry(t.Context(), f.db, dead[0].Number, "ann"))
				}
				f.provider.on("retrieve", shows("succeeded")) // a call that is answered keeps the circuit breaker closed
				_, err := f.client.RetrieveIntent(t.Context(), "pi_1")
				testdb.Must(t, err)
				if test.reads != "" {
					f.provider.on(test.reads, test.read)
				}
				f.expectEnd(f.deliver(), "waits")
			}
			const count = `select count(*)::text from ledger_events where type = '%s'`
			f.expectText(fmt.Sprint(domain.MaxKeys-1), fmt.Sprintf(count, test.event))
			if test.reads != "" {
				f.provider.on(test.reads, test.read)
			}
			for work, answers := range test.works {
				f.provider.on(work, answers...)
			}
			f.expectEnd(f.deliver(), "done")
			f.expectText(fmt.Sprint(domain.MaxKeys-1), fmt.Sprintf(count, test.event))
			keys := f.provider.keys(op)
			last := keys[domain.MaxKeys-1]
			if sent := slices.Compact(slices.Clone(keys)); len(keys) != failures+1 || len(sent) != domain.MaxKeys || keys[failures] != last {
				t.Errorf("%d calls with %d keys, the last %s, want %d with %d, the last %s", len(keys), len(sent), keys[failures], failures+1, domain.MaxKeys, last)
			}
		})
	}
}
