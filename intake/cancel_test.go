package intake_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

func TestCancelCharge(t *testing.T) {
	t.Parallel()
	cancelOf := func(key string) intake.Request {
		r := request(key, "f")
		r.Key.Operation = "POST /v1/charges/:id/cancel"
		return r
	}

	t.Run("a charge without outcome is asked to be canceled, once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in := keeping(t, db)
		location := accept(t, in, request("charge", "f")).Location
		charge := strings.TrimPrefix(location, "/v1/charges/")
		for _, key := range []string{"k1", "k1", "k2"} {
			got, err := in.CancelCharge(t.Context(), acme(), cancelOf(key), charge)
			if err != nil || got.StatusCode != http.StatusAccepted || got.Location != location || !strings.Contains(string(got.Body), `"status":"pending"`) {
				t.Errorf("%s: %v: %+v", key, err, got)
			}
		}
		s, err := ledger.Load(t.Context(), db, charge)
		if err != nil || len(s.Events) != 2 || s.Head().Type != "charge.cancel_requested.v1" {
			t.Errorf("%v: the stream has %d events and ends with %s", err, len(s.Events), s.Head().Type)
		}
		if got := tables(t, db); got["outbox"] != 2 || got["idempotency_keys"] != 3 {
			t.Errorf("rows: %v", got)
		}
	})

	t.Run("a charge with an outcome is not, and the refusal is the key's answer", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in, charge := keeping(t, db), captured(t, db)
		for range 2 {
			got, err := in.CancelCharge(t.Context(), acme(), cancelOf("k1"), charge)
			if err != nil || got.StatusCode != http.StatusConflict || !strings.Contains(string(got.Body), domain.ErrFinished.Error()) {
				t.Errorf("%v: %+v", err, got)
			}
		}
		if got := tables(t, db); got["outbox"] != 1 {
			t.Errorf("rows: %v", got)
		}
	})

	t.Run("twenty cancellations at once ask once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in := keeping(t, db)
		charge := strings.TrimPrefix(accept(t, in, request("charge", "f")).Location, "/v1/charges/")
		accepted, _ := rivals(t, 20, func(i int) (idempotency.Outcome, error) {
			return in.CancelCharge(t.Context(), acme(), cancelOf(fmt.Sprint("k", i)), charge)
		})
		s, err := ledger.Load(t.Context(), db, charge)
		if err != nil || accepted != 20 || len(s.Events) != 2 {
			t.Errorf("%v: %d accepted, %d events", err, accepted, len(s.Events))
		}
	})
}
