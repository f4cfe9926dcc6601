package e2e_test

import (
	"testing"

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

// sandbox is the sandbox's own API, which the service does not use.
func (w *world) sandbox() traffic.Sandbox { return traffic.Sandbox(w.Sandbox.URL()) }

// records are what the provider and the shop have recorded.
func (d *deployment) records(t *testing.T) traffic.Books {
	t.Helper()
	b, err := d.sandbox().Books(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (d *deployment) recordsOf(t *testing.T, id string) entry {
	t.Helper()
	return recordedOf(d.records(t), id)
}

// setFaults replaces the faults of the provider and the shop; the zero value is none.
func (d *deployment) setFaults(t *testing.T, f traffic.Faults) {
	t.Helper()
	if err := d.sandbox().SetFaults(bounded(t), f); err != nil {
		t.Fatal(err)
	}
}
