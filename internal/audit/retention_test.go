package audit_test

import (
	"testing"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// Retention may delete in any order and however early, and the audit misses nothing.
func TestRetention(t *testing.T) {
	testdb.Long(t, "it writes thousands of rows")
	t.Parallel()
	sweeps := map[string]func(*world) (int, error){
		"keys":   func(w *world) (int, error) { return idempotency.Sweep(w.Context(), w.db, 1000) },
		"outbox": func(w *world) (int, error) { return outbox.Sweep(w.Context(), w.db, 0, 5) },
		"inbox":  func(w *world) (int, error) { return inbox.Sweep(w.Context(), w.db, 0, 5) },
	}
	for _, test := range []struct {
		name  string
		order []string
		left  string
	}{
		{"the inbox first", []string{"inbox", "inbox"}, "all"},
		{"the outbox first", []string{"outbox", "outbox"}, "some"},
		{"in turn", []string{"keys", "outbox", "inbox", "outbox", "inbox", "outbox", "inbox", "outbox", "inbox", "outbox", "inbox", "inbox", "inbox"}, "some"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(`update idempotency_keys set expires_at = now()`)
			before := w.messages()
			for _, name := range test.order {
				if _, err := sweeps[name](w); err != nil {
					t.Fatal(err)
				}
				if got := violated(w.audit().Checks); len(got) != 0 {
					t.Fatalf("after a sweep of the %s: violated: %v", name, got)
				}
			}
			if after := w.messages(); (after == before) != (test.left == "all") {
				t.Errorf("%d messages are left of %d, want %s", after, before, test.left)
			}
		})
	}
}

// messages counts what is left in outbox and inbox.
func (w *world) messages() (n int) {
	w.Helper()
	err := w.db.QueryRow(w.Context(), `select (select count(*) from outbox) + (select count(*) from inbox)`).Scan(&n)
	if err != nil {
		w.Fatal(err)
	}
	return n
}
