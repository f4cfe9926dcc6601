package e2e_test

import (
	"errors"
	"os/exec"
	"slices"
	"testing"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testrun"
)

// TestWorker_killedAfterCapture_chargesOnce kills the worker when the provider has
// captured the payment and the worker has not read the answer. It is the one test
// that starts programs with -short; TestWalk kills at every other round trip.
func TestWorker_killedAfterCapture_chargesOnce(t *testing.T) {
	t.Parallel()
	// Given one running worker, and another one to take over.
	d := deploy(t, setup{apis: 1, workers: 2, gated: true})
	stop(t, d.Workers[1])
	killed := make(chan error, 1)
	d.gates.once("confirm", failpoint.After, func() bool {
		killed <- d.Workers[0].Kill()
		return false
	})

	// When it is killed after the capture.
	id := d.send(t, newOrder(visa)).ID
	must(t, testrun.Receive(t, "the worker confirms the payment", killed))
	restart(t, d.Workers[1])

	// Then the charge succeeds, is captured once, and the merchant is notified once.
	d.mustSucceedOnce(t, id)
	// The second worker reads the payment's state instead of confirming it.
	calls := d.gates.forwarded()
	if confirms := slices.DeleteFunc(slices.Clone(calls), func(call string) bool { return call != "confirm" }); len(confirms) != 1 ||
		!slices.Contains(calls, "retrieve") {
		t.Errorf("the workers called %q, want one confirm and a retrieve", calls)
	}
	mustRead(t, d, true, `select status = 'done' and attempts >= 2 and fence >= 2 and done_fence = fence
  from inbox where ordering_key = $1 and receiver = 'fulfillment'`, id)
}

// allDone are the steps of a charge that succeeded.
const allDone = "inventory done, payment done, notification done"

// mustSucceedOnce waits for a charge's outcome and compares it with the provider's
// and the shop's records.
func (d *deployment) mustSucceedOnce(t *testing.T, id string) {
	t.Helper()
	c := d.await(t, id)
	if c.Status != "succeeded" || c.steps() != allDone {
		t.Errorf("charge %s is %s with %q, want succeeded with %q", id, c.Status, c.steps(), allDone)
	}
	b := d.recordsOf(t, id)
	if len(b.Captures) != 1 || len(b.Intents) != 1 || b.Intents[0].Status != "succeeded" {
		t.Errorf("the provider has %+v and %+v of %s, want 1 capture of 1 intent", b.Captures, b.Intents, id)
	}
	if n := b.Notifications; len(n) != 1 || n[0].Effects != 1 || n[0].Type != "charge.succeeded" {
		t.Errorf("the shop was notified %+v of %s, want charge.succeeded once", n, id)
	}
}

// TestWorker_SIGTERM_releasesItsMessages stops a worker while the provider does not
// answer it. Where the machine is so slow that the call ends before the worker's time to
// drain, another worker is stopped.
func TestWorker_SIGTERM_releasesItsMessages(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1, gated: true, workerEnv: longLease()})
	hanging := make(chan struct{})
	d.gates.set(func(p passage) bool {
		if p.name == "confirm" && p.Side == failpoint.Before {
			select {
			case hanging <- struct{}{}:
				<-t.Context().Done()
			case <-t.Context().Done():
			}
		}
		return p.name != "confirm"
	})
	id := d.send(t, newOrder(visa)).ID
	const timeOuts = 3
	for waits := range timeOuts {
		testrun.Receive(t, "the worker confirms the payment", hanging)
		stop(t, d.Workers[0])
		if row[int](t, d, `select waits from inbox where ordering_key = $1`, id) == waits {
			break
		}
		restart(t, d.Workers[0])
	}
	mustRead(t, d, "pending 0 t", `select concat_ws(' ', status, attempts, due_at <= clock_timestamp()) from inbox where ordering_key = $1`, id)
	d.gates.open()
	restart(t, d.Workers[0])
	d.mustSucceedOnce(t, id)
}

// exitCode is that of a program that ended with an error, 0 of one that did not.
func exitCode(err error) int {
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		return ended.ExitCode()
	}
	return 0
}
