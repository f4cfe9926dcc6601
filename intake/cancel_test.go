package intake_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
)

func TestCancelCharge(t *testing.T) {
	t.Parallel()
	t.Run("a charge without outcome is asked to be canceled, once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in := keeping(t, db)
		charge := charge(t, in, "charge")
		for _, key := range []string{"k1", "k1", "k2"} {
			got, err := in.CancelCharge(t.Context(), acme(), to("cancel", key), charge)
			if err != nil || got.StatusCode != http.StatusAccepted || got.Header.Get("Location") != "/v1/charges/"+charge || !strings.Contains(string(got.Body), `"status":"pending"`) {
				t.Errorf("%s: %v: %+v", key, err, got)
			}
		}
		if s := load(t, db, charge); len(s.Events) != 2 || s.Head().Type != "charge.cancel_requested.v1" {
			t.Errorf("the stream has %d events and ends with %s", len(s.Events), s.Head().Type)
		}
		if got := tables(t, db); got["outbox"] != 2 || got["idempotency_keys"] != 3 {
			t.Errorf("rows: %v", got)
		}
	})

	t.Run("twenty cancellations at once append one event", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in := keeping(t, db)
		charge := charge(t, in, "charge")
		accepted, _ := rivals(t, 20, func(i int) (idempotency.Result, error) {
			return in.CancelCharge(t.Context(), acme(), to("cancel", fmt.Sprint("k", i)), charge)
		})
		if s := load(t, db, charge); accepted != 20 || len(s.Events) != 2 {
			t.Errorf("%d accepted, %d events", accepted, len(s.Events))
		}
	})
}
