package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCancel takes charges back before the capture, or too late for that.
func TestCancel(t *testing.T) {
	t.Parallel()
	long(t)

	t.Run("a charge that waits for the provider is canceled and not captured", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{apis: 1, workers: 1, workerEnv: map[string]string{"BACKOFF_CAP": "2h", "BACKOFF_BASE": "2h"}})
		w.breakOutside(t, faults{DropBefore: 1})
		c := w.send(t, newOrder(visa, item{"mug", 2}))
		const waits = `
select coalesce(max(waits), 0) > 0
  from inbox
 where ordering_key = $1`
		eventually(t, "the charge waits for the provider", func() bool { return row[bool](t, w, waits, c.ID) })
		w.mendOutside(t)
		// The charge would wait for an hour or so: the cancellation wakes it.
		if got := w.cancel(t, c.ID); got.Status != http.StatusAccepted {
			t.Fatalf("answered %d %s", got.Status, got.Body)
		}
		got := w.await(t, c.ID)
		if got.Status != "failed" || got.Failure == nil || got.Failure.Code != "canceled" {
			t.Errorf("the charge is %s, %+v", got.Status, got.Failure)
		}
		if want := "inventory compensated, payment skipped, notification done"; got.steps() != want {
			t.Errorf("its steps: %s, want %s", got.steps(), want)
		}
		if diff := cmp.Diff([]string{
			"charge.requested", "inventory.reserved", "charge.cancel_requested", "inventory.released", "charge.failed", "merchant.notified",
		}, w.story(t, c.ID)); diff != "" {
			t.Errorf("its events (-want +got):\n%s", diff)
		}
		late := w.cancel(t, c.ID)
		mustBeProblem(t, late, http.StatusConflict, "conflict")
	})

	t.Run("of a cancellation and a capture one wins", func(t *testing.T) {
		t.Parallel()
		cancellationAgainstCapture(t)
	})
}

func (w *world) cancel(t *testing.T, id string) answer {
	t.Helper()
	got, err := w.client.do(t.Context(), request{path: "/v1/charges/" + id + "/cancel", key: "key-" + unique()})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// cancellationAgainstCapture sends the cancellation while the charge is carried,
// at every stage of it. The judge looks that a canceled charge was not captured.
func cancellationAgainstCapture(t *testing.T) {
	t.Helper()
	// Fewer places than races, so that some charges wait for one.
	w := newWorld(t, setup{apis: 1, workers: 2, workerEnv: map[string]string{"WORKER_CONCURRENCY": "1"}})
	w.breakOutside(t, faults{Seed: 3, Slow: slow{P: 0.5, MS: 20}})
	n := 120
	ends := make([]string, n)
	turns := make(chan int, n)
	for i := range n {
		turns <- i
	}
	close(turns)
	orders := make([]order, n)
	bodies := make([][]byte, n)
	for i := range orders {
		orders[i] = newOrder(visa)
		bodies[i] = orders[i].body(t)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range turns {
				end, err := w.race(t.Context(), bodies[i], i%5)
				if err != nil {
					t.Error(err)
				}
				ends[i] = end
			}
		})
	}
	all.Wait()
	books := w.books(t)
	for _, end := range ends {
		outcome, id, _ := strings.Cut(end, " ")
		if captures := books.of(id).captures; captures != map[string]int{"captured": 1}[outcome] {
			t.Errorf("%s is %s, and was captured %d times", id, outcome, captures)
		}
	}
	tally := map[string]int{}
	for _, end := range ends {
		outcome, _, _ := strings.Cut(end, " ")
		tally[outcome]++
	}
	if tally["canceled"] == 0 || tally["captured"] == 0 {
		t.Errorf("how %d races ended: %v; both sides have to win some", n, tally)
	}
	t.Logf("of %d races %v", n, tally)
}

// race cancels a charge once it has more than so many events, and says how it
// ended. The later the cancellation, the more of the charge has happened.
func (w *world) race(ctx context.Context, order []byte, events int) (end string, err error) {
	got, _, err := w.client.insist(ctx, request{key: "key-" + unique(), body: order})
	if err != nil {
		return "", err
	}
	var c charge
	if err := json.Unmarshal(got.Body, &c); err != nil {
		return "", fmt.Errorf("answered %d %s: %w", got.Status, got.Body, err)
	}
	path := "/v1/charges/" + c.ID
	within(endPatience, func() bool {
		read, err := w.client.do(ctx, request{method: http.MethodGet, path: path + "/events"})
		return err == nil && bytes.Count(read.Body, []byte(`"version"`)) > events
	})
	canceled, err := w.client.do(ctx, request{path: path + "/cancel", key: "key-" + unique()})
	if err != nil {
		return "", err
	}
	within(endPatience, func() bool {
		c = w.charge(ctx, c.ID)
		return c.over()
	})
	switch {
	case canceled.Status == http.StatusAccepted && c.Status == "failed" && c.Failure.Code == "canceled":
		return "canceled " + c.ID, nil
	case c.Status == "succeeded" && (canceled.Status == http.StatusAccepted || canceled.Status == http.StatusConflict):
		return "captured " + c.ID, nil
	}
	return "", fmt.Errorf("%s is %s, %+v; the cancellation was answered %d %s", c.ID, c.Status, c.Failure, canceled.Status, canceled.Body)
}
