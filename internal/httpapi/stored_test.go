package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/testdb"
)

// answered is a request whose answer is stored, and what is at its Location.
type answered struct {
	name   string
	call   call
	status int
	kind   string // of the problem
}

// outcomes are requests with every kind of answer that is stored.
func (w *world) outcomes(t *testing.T) (all []answered, open, paid string) {
	t.Helper()
	open, paid = w.accept(t, "open", body()).header.Get("Location"), w.captured(t, "paid")
	const nowhere = "/v1/charges/ch_00000000000000000000000000000000"
	return []answered{
		{"an accepted charge", post("a", body()), http.StatusAccepted, ""},
		{"an accepted cancellation", to(open+"/cancel", "b", ""), http.StatusAccepted, ""},
		{"an accepted refund", to(paid+"/refunds", "c", `{"amount":300}`), http.StatusAccepted, ""},
		{"a cancellation of nothing", to(nowhere+"/cancel", "d", ""), http.StatusNotFound, "/problems/not-found"},
		{"a refund of nothing", to(nowhere+"/refunds", "e", `{"amount":1}`), http.StatusNotFound, "/problems/not-found"},
		{"a cancellation that came too late", to(paid+"/cancel", "f", ""), http.StatusConflict, "/problems/conflict"},
		{"a refund that came too early", to(open+"/refunds", "g", `{"amount":1}`), http.StatusConflict, "/problems/conflict"},
		{"a refund of too much", to(paid+"/refunds", "h", `{"amount":1701}`), http.StatusUnprocessableEntity, "/problems/refund-exceeds-captured"},
	}, open, paid
}

// firsts sends each of them for the first time.
func (w *world) firsts(t *testing.T, all []answered) []answer {
	t.Helper()
	answers := make([]answer, len(all))
	for i, test := range all {
		answers[i] = w.send(t, test.call)
		if answers[i].status != test.status {
			t.Fatalf("%s: status %d, want %d: %s", test.name, answers[i].status, test.status, answers[i].body)
		}
	}
	return answers
}

// Whatever has become of the charges since, a key has the answer that it had.
func TestReplay_repeatsEveryStoredAnswer(t *testing.T) {
	t.Parallel()
	w := serve(t)
	all, open, paid := w.outcomes(t)
	none := rows(t, w.db)
	answers := w.firsts(t, all)
	wantRows(t, w.db, none, map[string]int64{"idempotency_keys": 8, "ledger_events": 3, "ledger_postings": 2, "outbox": 3})
	refund := answers[2].header.Get("Location")
	w.happen(t, open, isCanceled)
	w.happen(t, paid, returned(strings.TrimPrefix(refund, paid+"/refunds/")))
	before := rows(t, w.db)
	for i, test := range all {
		t.Run(test.name, func(t *testing.T) {
			if answers[i].header.Get("Idempotency-Expires") == "" {
				t.Error("Idempotency-Expires is missing")
			}
			if test.kind != "" {
				if p := readProblem(t, answers[i]); p.Type != test.kind || p.Status != test.status || p.RetryWith != "new-key" {
					t.Errorf("want %s, and another key for another try: %s", test.kind, answers[i].body)
				}
			}
			if hasLocation := answers[i].header.Get("Location") != ""; hasLocation != (test.status == http.StatusAccepted) {
				t.Errorf("Location is %q", answers[i].header.Get("Location"))
			}
			wantReplay(t, answers[i], w.send(t, test.call))
			wantRows(t, w.db, before, nil)
		})
	}
}

func TestExpiredKey_isGone(t *testing.T) {
	t.Parallel()
	w := serve(t)
	all, _, _ := w.outcomes(t)
	answers := w.firsts(t, all)
	exec(t, w.db, `update idempotency_keys set expires_at = clock_timestamp()`)
	before := rows(t, w.db)
	for _, deleted := range []bool{false, true} {
		if deleted {
			if _, err := idempotency.ExpireKeys(t.Context(), w.db, 100); err != nil {
				t.Fatal(err)
			}
		}
		for i, test := range all {
			a := w.send(t, test.call)
			wantProblem(t, a, "/problems/idempotency-key-expired")
			if got, want := a.header.Get("Location"), answers[i].header.Get("Location"); got != want {
				t.Errorf("%s: Location is %q, want %q", test.name, got, want)
			}
			if got, want := a.header.Get("Idempotency-Expires"), answers[i].header.Get("Idempotency-Expires"); got == "" || got == want {
				t.Errorf("%s: Idempotency-Expires is %q, and was %q", test.name, got, want)
			}
		}
		// The tombstone knows the request's fingerprint and where its answer is, and
		// no member of it.
		wantPointers(t, wantProblem(t, w.send(t, post("a", body("amount", "1"))), "/problems/idempotency-key-reused"))
		location := answers[0].header.Get("Location")
		if uses := data(t, w.send(t, get("/v1/idempotency-keys/a"))); len(uses) != 1 || uses[0]["location"] != location {
			t.Errorf("deleted %t: the key led to %v, want %s", deleted, uses, location)
		}
		wantRows(t, w.db, before, nil)
	}
}

// TestOneChargePerOrder: a second key of an order is answered 409 with the order's charge as it
// was then, and the answer stays. Of one merchant by its account, of all by the setting.
func TestOneChargePerOrder(t *testing.T) {
	t.Parallel()
	for name, ofAll := range map[string]bool{"of a merchant": false, "of all": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := serve(t, func(api *httpapi.Config) { api.OneChargePerOrder = ofAll })
			testdb.Exec(t, w.db.Pool(), fmt.Sprintf(`update merchants set one_charge_per_order = %t where merchant_id = 'acme'`, !ofAll))
			first := w.accept(t, "first", body()).header.Get("Location")
			refused := func(key, status string) {
				t.Helper()
				a := w.send(t, post(key, body()))
				p := readProblem(t, a)
				if p.Type != "/problems/order-taken" || p.Status != http.StatusConflict || p.RetryWith != "new-key" ||
					!strings.Contains(a.body, `"charge":{"id":"`+strings.TrimPrefix(first, "/v1/charges/")+`"`) ||
					!strings.Contains(a.body, `"status":"`+status+`"`) {
					t.Errorf("%s is answered %s", key, a.body)
				}
			}
			refused("second", "pending")
			w.happen(t, first, happens(domain.ChargeCancelRequested{}), isCanceled)
			refused("second", "pending")
			first = w.captured(t, "third")
			refused("fourth", "succeeded")
			w.accept(t, "other", body("order_id", `"another"`))
		})
	}
}
