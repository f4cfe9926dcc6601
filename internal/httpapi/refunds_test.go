package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/ledger"
)

// to is a keyed request to a path.
func to(path, key, body string) call {
	c := post(key, body)
	c.path = path
	return c
}

// happen commits what commands cause to the charge at a location, as a worker
// would.
func (w *world) happen(t *testing.T, location string, commands ...domain.Command) {
	t.Helper()
	s, err := ledger.Load(t.Context(), w.db, strings.TrimPrefix(location, "/v1/charges/"))
	if err != nil {
		t.Fatal(err)
	}
	b := &pgx.Batch{}
	for _, command := range commands {
		events, err := domain.Decide(s.Charge, command)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = ledger.Append(b, s, ledger.Cause{CausationID: "worker"}, events...); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// data are the members of each element of a list.
func data(t *testing.T, a answer) []map[string]any {
	t.Helper()
	var list struct {
		Data []map[string]any `json:"data"`
	}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", a.status, err, a.body)
	}
	return list.Data
}

// captured accepts and captures a charge of 2000.
func (w *world) captured(t *testing.T, key string) (location string) {
	t.Helper()
	location = w.accept(t, key, body()).header.Get("Location")
	intent := "pi_" + strings.TrimPrefix(location, "/v1/charges/")
	w.happen(t, location, domain.StartPayment{Provider: domain.Provider, PaymentIntent: intent}, domain.CapturePayment{
		Provider: domain.Provider, PaymentIntent: intent, Amount: domain.Money{Amount: 2000, Currency: "USD"},
	})
	return location
}

func TestRefund(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.captured(t, "charge")
	before := rows(t, w.db)

	first := w.send(t, to(charge+"/refunds", "refund", `{"amount":500,"reason":"broken"}`))
	if first.status != http.StatusAccepted {
		t.Fatalf("status %d: %s", first.status, first.body)
	}
	wantRows(t, w.db, before, ofOneCharge()) // a refund adds the same rows
	location := first.header.Get("Location")
	id, found := strings.CutPrefix(location, charge+"/refunds/re_")
	if !found || len(id) != 32 {
		t.Errorf("Location is %q", location)
	}
	want := map[string]any{
		"id": "re_" + id, "charge_id": strings.TrimPrefix(charge, "/v1/charges/"),
		"amount": 500.0, "currency": "USD", "status": "pending",
	}
	if diff := cmp.Diff(want, members(t, first.body)); diff != "" {
		t.Errorf("refund (-want +got):\n%s", diff)
	}

	again := w.send(t, to(charge+"/refunds", `"refund"`, ` {"reason":"broken", "amount":500} `))
	if again.status != first.status || again.body != first.body || again.header.Get("Location") != location ||
		again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("not the first answer: %d, %s", again.status, again.body)
	}
	if a := w.send(t, get(location)); a.status != http.StatusOK || a.body != first.body {
		t.Errorf("the refund at its Location: %d, %s", a.status, a.body)
	}

	w.happen(t, charge, domain.SucceedRefund{
		RefundID: "re_" + id, Provider: domain.Provider, ProviderRefund: "re_9", Amount: domain.Money{Amount: 500, Currency: "USD"},
	})
	w.send(t, to(charge+"/refunds", "rest", `{}`))
	var states []any
	for _, r := range data(t, w.send(t, get(charge+"/refunds"))) {
		states = append(states, r["amount"], r["status"])
	}
	if diff := cmp.Diff([]any{500.0, "succeeded", 1500.0, "pending"}, states); diff != "" {
		t.Errorf("refunds (-want +got):\n%s", diff)
	}
	shown := members(t, w.send(t, get(charge)).body)
	if shown["status"] != "partially_refunded" || shown["amount_refunded"] != 500.0 {
		t.Errorf("the charge is %v, refunded %v", shown["status"], shown["amount_refunded"])
	}
	if head := w.send(t, call{method: http.MethodHead, path: location, header: get("").header}); head.status != http.StatusOK {
		t.Errorf("HEAD: status %d", head.status)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.accept(t, "charge", body()).header.Get("Location")
	before := rows(t, w.db)
	first := w.send(t, to(charge+"/cancel", "cancel", ""))
	if first.status != http.StatusAccepted || first.header.Get("Location") != charge {
		t.Errorf("status %d, Location %s: %s", first.status, first.header.Get("Location"), first.body)
	}
	if shown := members(t, first.body); shown["status"] != "pending" {
		t.Errorf("the charge is %v", shown["status"])
	}
	wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 1, "ledger_events": 1, "outbox": 1})
	for _, body := range []string{"", "{}", " {} "} {
		if a := w.send(t, to(charge+"/cancel", "cancel", body)); a.body != first.body || a.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%q: not the first answer: %s", body, a.body)
		}
	}
	w.happen(t, charge, domain.FailCanceled{})
	shown := members(t, w.send(t, get(charge)).body)
	failure, _ := shown["failure"].(map[string]any)
	if shown["status"] != "failed" || failure["code"] != "canceled" {
		t.Errorf("the charge is %v for %v", shown["status"], shown["failure"])
	}
	wantProblem(t, w.send(t, to(charge+"/cancel", "late", "")), "/problems/conflict")
}
