package audit_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/outbox"
)

// Whatever is swept, in whatever order and however early, the audit misses
// nothing; what a careless sweep takes, it does.
func TestRetention(t *testing.T) {
	pgtest.Long(t, "it writes thousands of rows")
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

	t.Run("an inbox that forgets what the outbox holds is found out", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.exec(`delete from inbox where status = 'done' and ordering_key = '{sold}'`)
		want := map[string]bool{"every message that was passed was received": true}
		if diff := cmp.Diff(want, violated(w.audit().Checks)); diff != "" {
			t.Errorf("violated (-want +got):\n%s", diff)
		}
	})

	t.Run("so is an outbox that forgets what nobody has received", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.exec(`delete from outbox where metadata ->> 'ordering_key' = '{fresh}'`)
		if got := violated(w.audit().Checks); !got["every request and outcome has its message"] {
			t.Errorf("violated: %v", got)
		}
	})
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
