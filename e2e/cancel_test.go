package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/traffic"
)

// TestCancel_wakesAWaitingCharge, and so does an event of the provider: both charges
// wait for the provider, with a backoff of hours.
func TestCancel_wakesAWaitingCharge(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	// Given two charges that wait for a provider that was down.
	d := deploy(t, setup{apis: 1, workers: 1, workerEnv: map[string]string{"BACKOFF_CAP": "2h", "BACKOFF_BASE": "2h"}})
	d.setFaults(t, traffic.Faults{DropBefore: 1})
	canceled, woken := d.send(t, newOrder(visa, item{"mug", 2})), d.send(t, newOrder(visa))
	await.Row(t, d.tables, `select count(*) = 2 from inbox where waits > 0`)
	d.setFaults(t, traffic.Faults{})

	// When one is canceled and the provider sends an event about the other.
	if got := d.cancel(t, canceled.ID); got.Status != http.StatusAccepted {
		t.Fatalf("the cancellation is answered %d %s, want 202", got.Status, got.Body)
	}
	d.deliverEvent(t, intentEvent("payment_intent.created", woken.ID))

	// Then the one fails without a payment, and the other succeeds.
	d.mustEnd(t, woken.ID, "succeeded")
	got := d.await(t, canceled.ID)
	if want := "canceled: inventory compensated, payment skipped, notification done"; got.outcome()+": "+got.steps() != want {
		t.Errorf("the canceled charge is %s: %s, want %s", got.outcome(), got.steps(), want)
	}
	if diff := cmp.Diff([]string{
		"charge.requested", "inventory.reserved", "charge.cancel_requested", "inventory.released", "charge.failed", "merchant.notified",
	}, d.story(t, canceled.ID)); diff != "" {
		t.Errorf("its events (-want +got):\n%s", diff)
	}
	mustBeProblem(t, d.cancel(t, canceled.ID), http.StatusConflict, "conflict")
}

func (d *deployment) cancel(t *testing.T, id string) answer {
	t.Helper()
	return d.do(t, request{path: "/v1/charges/" + id + "/cancel", key: "key-" + unique()})
}

// TestCancel_againstCapture_oneWins cancels charges while they are processed, at every
// stage.
func TestCancel_againstCapture_oneWins(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	// Fewer free slots than races, so that some charges wait for one.
	d := deploy(t, setup{apis: 1, workers: 2, workerEnv: map[string]string{"WORKER_CONCURRENCY": "1"}})
	d.setFaults(t, traffic.Faults{Seed: 3, Slow: traffic.Slow{P: 1, Milliseconds: 20}})
	const n, early = 60, 4
	ends := make([]charge, n)
	var all sync.WaitGroup
	slots := make(chan struct{}, 16)
	race := func(i, events int) {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var err error
			if ends[i], err = d.race(t.Context(), events); err != nil {
				t.Error(err)
			}
		})
	}

	// When some are canceled before a worker runs,
	stop(t, d.Workers...)
	for i := range early {
		race(i, 0)
	}
	await.Row(t, d.tables, `select count(*) = $1 from ledger_events where type = 'charge.cancel_requested.v1'`, early)
	restart(t, d.Workers...)
	// and the others after so many events,
	for i := early; i < n; i++ {
		race(i, i%5)
	}
	all.Wait()

	// then every charge is either canceled or captured once.
	records, tally := d.records(t), map[string]int{}
	for _, c := range ends {
		tally[c.outcome()]++
		if captures := recordedOf(records, c.ID).captures; captures != map[string]int{"succeeded": 1}[c.outcome()] {
			t.Errorf("%s is %s, and was captured %d times", c.ID, c.outcome(), captures)
		}
	}
	if tally["canceled"] == 0 || tally["succeeded"] == 0 {
		t.Errorf("how %d races ended: %v; both sides have to win some", n, tally)
	}
	t.Logf("of %d races %v", n, tally)
}

// race cancels a charge once it has more than so many events, and returns it as it
// ended. The later the cancellation, the more of the charge has happened.
func (d *deployment) race(ctx context.Context, events int) (charge, error) {
	c, err := d.client.accept(ctx, newOrder(visa))
	if err != nil {
		return c, err
	}
	path := "/v1/charges/" + c.ID
	await.Within(await.Stall, func() bool {
		read, err := d.client.do(ctx, request{method: http.MethodGet, path: path + "/events"})
		return err == nil && bytes.Count(read.Body, []byte(`"version"`)) > events
	})
	canceled, err := d.client.do(ctx, request{path: path + "/cancel", key: "key-" + unique()})
	if err != nil {
		return c, err
	}
	await.Within(await.Stall, func() bool {
		c = d.charge(ctx, c.ID)
		return c.over()
	})
	if accepted := canceled.Status == http.StatusAccepted; c.outcome() == "canceled" && accepted ||
		c.outcome() == "succeeded" && (accepted || canceled.Status == http.StatusConflict) {
		return c, nil
	}
	return c, fmt.Errorf("%s is %s, %+v; the cancellation was answered %d %s", c.ID, c.Status, c.Failure, canceled.Status, canceled.Body)
}
