package fulfillment_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

// Seeds whose first draw makes the sandbox fail before the effect, and after it.
// Either way it saves the 500 under the key.
const (
	failsBefore = `{"seed": 4, "error_500": 1}`
	failsAfter  = `{"seed": 1, "error_500": 1}`
)

// TestSavedError has a provider that saved a 500 which nobody here has seen: the
// key leads to it for ever. The next holder meets it, records it, and goes on
// under another key.
func TestSavedError(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	for name, faults := range map[string]string{"before the effect": failsBefore, "after the effect": failsAfter} {
		for _, op := range []string{"create", "confirm"} {
			t.Run("of a "+op+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.provider.behind = newSandbox(t)
				w.accept("ch_1", order())
				w.provider.on(op, w.underFaults(faults))
				w.expectKind(w.deliver(), "waits")
				w.deliverUntilDone()
				w.expectAttemptFailed("payment.attempt_failed", op == "create" || faults == failsBefore)
				if b := booksOf(t, w.provider.behind); len(b.Captures) != 1 || w.see().Stock != sold {
					t.Errorf("the provider's captures are %+v, want one", b.Captures)
				}
			})
		}
		t.Run("of a refund "+name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.provider.behind = newSandbox(t)
			w.request(w.charged("pm_card_visa"), "re_1", 600)
			w.provider.on("refund", w.underFaults(faults))
			w.expectKind(w.deliver(), "waits")
			w.deliverUntilDone()
			w.expectAttemptFailed("refund.attempt_failed", faults == failsBefore)
			w.expectBack("refund.succeeded", moved{"re_1", 600})
		})
	}
}

// underFaults lets the sandbox answer one request under faults, and loses the
// answer.
func (w *world) underFaults(faults string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		control(w.T, w.provider.behind, http.MethodPut, "/faults", faults)
		defer control(w.T, w.provider.behind, http.MethodDelete, "/faults", "")
		w.provider.cutAfter(rw, r)
	}
}

// expectAttemptFailed checks that the saved error was met once, or that whoever
// looked first found the effect and never met it.
func (w *world) expectAttemptFailed(event string, met bool) {
	w.Helper()
	want := 0
	if met {
		want = 1
	}
	if got := strings.Count(w.see().Events, event); got != want {
		w.Errorf("%s is recorded %d times, want %d: %s", event, got, want, w.see().Events)
	}
}
