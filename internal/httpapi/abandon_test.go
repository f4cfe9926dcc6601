package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
)

func abandon(key string) call { return to("/v1/idempotency-keys/"+key+"/abandon", "", "") }

// wantAbandoned gives the key up. charge is the status of the charge that was accepted under
// it, or "".
func (w *world) wantAbandoned(t *testing.T, key, charge string) {
	t.Helper()
	a := w.send(t, abandon(key))
	var got struct {
		Abandoned bool
		Charge    struct{ Status string }
	}
	testdb.Must(t, json.Unmarshal([]byte(a.body), &got))
	if a.status != http.StatusOK || got.Abandoned != (charge == "") || got.Charge.Status != charge {
		t.Errorf("%s: status %d: %s", key, a.status, a.body)
	}
}

func TestAbandon(t *testing.T) {
	t.Parallel()
	const forget = `update idempotency_keys set body = null, request = null, expires_at = clock_timestamp()`

	t.Run("a free key is taken", func(t *testing.T) {
		w := serve(t)
		before := rows(t, w.db)
		w.wantAbandoned(t, "given-up", "")
		w.wantAbandoned(t, "given-up", "")
		for _, request := range []string{body(), body(), body("amount", "1000")} {
			a := w.send(t, post("given-up", request))
			if a.header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("headers: %v", a.header)
			}
			a.header.Del("Idempotent-Replayed")
			wantProblem(t, a, "/problems/idempotency-key-abandoned")
		}
		wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 1})
		testdb.Exec(t, w.db.Pool(), forget)
		w.wantAbandoned(t, "given-up", "")
		wantProblem(t, w.send(t, post("given-up", body())), "/problems/idempotency-key-expired")
		w.accepted(t, post("given-up", body()).as(strangerKey))
	})
	t.Run("a charge that is open is canceled, once", func(t *testing.T) {
		w := serve(t)
		location := w.accept(t, `"a b"`, body()).header.Get("Location")
		before := rows(t, w.db)
		w.wantAbandoned(t, "a%20b", "pending")
		w.wantAbandoned(t, `"a%20b"`, "pending")
		wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 1, "ledger_events": 1, "outbox": 1})
		report, err := audit.Run(t.Context(), w.db.Pool())
		testdb.Must(t, err)
		for _, check := range report.Checks {
			if check.Violated > 0 {
				t.Errorf("%s: %v", check.Name, check.Examples)
			}
		}
		w.happen(t, location, isCanceled)
		w.wantAbandoned(t, "a%20b", "failed")
		wantProblem(t, w.send(t, abandon("a%00b")), "/problems/idempotency-key-invalid")
	})
	t.Run("a charge that has its outcome stays", func(t *testing.T) {
		w := serve(t)
		w.captured(t, "key")
		before := rows(t, w.db)
		w.wantAbandoned(t, "key", "succeeded")
		testdb.Exec(t, w.db.Pool(), forget)
		w.wantAbandoned(t, "key", "succeeded")
		wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 1})
	})
	t.Run("of a request at the same time one alone takes the key", func(t *testing.T) {
		w := serve(t)
		for n := range 20 {
			key := strconv.Itoa(n)
			answers, charge := w.sendAll(t, post(key, body()), abandon(key), post(key, body()), abandon(key)), ""
			for range 4 {
				if a := <-answers; a.status == http.StatusAccepted {
					charge = "pending"
				}
			}
			w.insist(t, abandon(key))
			w.wantAbandoned(t, key, charge)
		}
	})
}
