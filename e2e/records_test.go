package e2e_test

import (
	"context"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/traffic"
)

// entry is what the provider and the shop have recorded of one charge.
type entry struct {
	intents  []string // statuses
	captures int
	notified []traffic.Notification
}

func recordedOf(b traffic.Books, id string) entry {
	var e entry
	for _, in := range b.Intents {
		if in.Reference == id {
			e.intents = append(e.intents, in.Status)
		}
	}
	for _, c := range b.Captures {
		if c.Reference == id {
			e.captures++
		}
	}
	for _, n := range b.Notifications {
		if n.Reference == id {
			e.notified = append(e.notified, n)
		}
	}
	return e
}

// control calls the sandbox's own API, which the service does not use.
func (d *deployment) control(t *testing.T, call func(context.Context, traffic.Sandbox) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), await.Stall)
	defer cancel()
	if err := call(ctx, traffic.Sandbox(d.Sandbox.URL())); err != nil {
		t.Fatal(err)
	}
}

// books are the records of the provider and the shop.
func (w *world) books(ctx context.Context) (traffic.Books, error) {
	return traffic.Sandbox(w.Sandbox.URL()).Books(ctx)
}

func (d *deployment) records(t *testing.T) (b traffic.Books) {
	t.Helper()
	d.control(t, func(ctx context.Context, s traffic.Sandbox) (err error) { b, err = s.Books(ctx); return err })
	return b
}

func (d *deployment) recordsOf(t *testing.T, id string) entry {
	t.Helper()
	return recordedOf(d.records(t), id)
}

func (d *deployment) injectFaults(t *testing.T, f traffic.Faults) {
	t.Helper()
	d.control(t, func(ctx context.Context, s traffic.Sandbox) error { return s.SetFaults(ctx, f) })
}

func (d *deployment) clearFaults(t *testing.T) {
	t.Helper()
	d.control(t, func(ctx context.Context, s traffic.Sandbox) error { return s.ClearFaults(ctx) })
}
