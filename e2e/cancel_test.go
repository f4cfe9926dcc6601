package e2e_test

import (
	"net/http"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// TestCancel_wakesAWaitingCharge, and so does an event of the provider: both charges
// wait for the provider, with a backoff of hours.
func TestCancel_wakesAWaitingCharge(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	// Given a charge that waits for a provider that was down.
	d := deploy(t, setup{apis: 1, workers: 1, workerEnv: map[string]string{"BACKOFF_CAP": "2h", "BACKOFF_BASE": "2h"}})
	d.setFaults(t, harness.Faults{DropBefore: 1})
	canceled := d.send(t, newOrder(visa, item{"mug", 2}))
	await.Row(t, d.tables, `select count(*) = 1 from inbox where waits > 0`)
	d.setFaults(t, harness.Faults{})

	// When it is canceled.
	if got := d.cancel(t, canceled.ID); got.Status != http.StatusAccepted {
		t.Fatalf("the cancellation is answered %d %s, want 202", got.Status, got.Body)
	}

	// Then it fails without a payment.
	got := d.await(t, canceled.ID)
	if want := "canceled: inventory compensated, payment skipped, notification done"; got.outcome()+": "+got.steps() != want {
		t.Errorf("the canceled charge is %s: %s, want %s", got.outcome(), got.steps(), want)
	}
	testrun.Same(t, "its events", []string{
		"charge.requested", "inventory.reserved", "charge.cancel_requested", "inventory.released", "charge.failed", "merchant.notified",
	}, d.story(t, canceled.ID))
	mustBeProblem(t, d.cancel(t, canceled.ID), http.StatusConflict, "conflict")
}

func (d *deployment) cancel(t *testing.T, id string) answer {
	t.Helper()
	return d.do(t, request{path: "/v1/charges/" + id + "/cancel", key: "key-" + unique()})
}
