package e2e_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testrun"
)

func isConfirm(c *failpoint.Call) bool { return strings.HasSuffix(c.Request.URL.Path, "/confirm") }

// TestWorker_killedAfterCapture_chargesOnce kills the worker when the provider has
// captured the payment and the worker has not read the answer. It is the one test
// that starts programs with -short; TestWalk kills at every other round trip.
func TestWorker_killedAfterCapture_chargesOnce(t *testing.T) {
	t.Parallel()
	var d *deployment
	var confirms atomic.Int32
	killed := make(chan error, 1)
	d = deploy(t, setup{apis: 1, workers: 2, gate: func(c *failpoint.Call) failpoint.Fault {
		if isConfirm(c) && c.Side == failpoint.After && confirms.Add(1) == 1 {
			killed <- d.Workers[0].Kill()
			return failpoint.Cut
		}
		return failpoint.None
	}})
	stop(t, d.Workers[1])
	id := d.send(t, newOrder(visa)).ID
	must(t, testrun.Receive(t, "the worker confirms the payment", killed))
	restart(t, d.Workers[1])
	d.mustSucceed(t, id)
	if n := confirms.Load(); n != 1 { // the second worker reads the payment's state
		t.Errorf("the payment was confirmed %d times", n)
	}
	mustRead(t, d, true, `select status = 'done' and attempts >= 2 and fence >= 2 and done_fence = fence
  from inbox where ordering_key = $1 and receiver = 'fulfillment'`, id)
}

// TestWorker_SIGTERM_releasesItsMessages stops a worker while the provider does not
// answer it. Where the machine is so slow that the call ends before the worker's time to
// drain, another worker is stopped.
func TestWorker_SIGTERM_releasesItsMessages(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	hanging := make(chan struct{})
	var answers atomic.Bool
	d := deploy(t, setup{apis: 1, workers: 1, workerEnv: longLease(), gate: func(c *failpoint.Call) failpoint.Fault {
		if answers.Load() || !isConfirm(c) {
			return failpoint.None
		}
		select {
		case hanging <- struct{}{}:
			<-t.Context().Done()
		case <-t.Context().Done():
		}
		return failpoint.Cut
	}})
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
	answers.Store(true)
	restart(t, d.Workers[0])
	d.mustSucceed(t, id)
}
