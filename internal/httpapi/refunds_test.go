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

func TestRefundRefused(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.captured(t, "charge")
	open := w.accept(t, "open", body()).header.Get("Location")
	const nowhere = "/v1/charges/ch_00000000000000000000000000000000"
	for _, test := range []struct { //nolint:paralleltest // each counts rows
		name, path, body, kind string
		stored                 bool
	}{
		{"more than was captured", charge + "/refunds", `{"amount":2001}`, "/problems/refund-exceeds-captured", true},
		{"of a charge under way", open + "/refunds", `{"amount":1}`, "/problems/conflict", true},
		{"of a charge that is not there", nowhere + "/refunds", `{"amount":1}`, "/problems/not-found", true},
		{"of a charge that cannot be", "/v1/charges/%00/refunds", `{"amount":1}`, "/problems/not-found", false},
		{"of a card number", "/v1/charges/4242424242424242/refunds", `{"amount":1}`, "/problems/not-found", false},
		{"of nothing", charge + "/refunds", `{"amount":0}`, "/problems/validation", false},
		{"of less than nothing", charge + "/refunds", `{"amount":-1}`, "/problems/validation", false},
		{"of a fraction", charge + "/refunds", `{"amount":1.0}`, "/problems/malformed", false},
		{"of a text", charge + "/refunds", `{"amount":"1"}`, "/problems/malformed", false},
		{"beyond 64 bits", charge + "/refunds", `{"amount":9223372036854775808}`, "/problems/malformed", false},
		{"with an unknown member", charge + "/refunds", `{"amount":1,"currency":"USD"}`, "/problems/malformed", false},
		{"with a repeated member", charge + "/refunds", `{"amount":1,"amount":1}`, "/problems/malformed", false},
		{"in other case", charge + "/refunds", `{"Amount":1}`, "/problems/malformed", false},
		{"without a body", charge + "/refunds", "", "/problems/malformed", false},
		{"with a long reason", charge + "/refunds", `{"reason":` + text(256) + `}`, "/problems/validation", false},
		{"with a card number", charge + "/refunds", `{"reason":"card 4242-4242-4242-4242"}`, "/problems/validation", false},
		{"with NUL", charge + "/refunds", `{"reason":"\u0000"}`, "/problems/malformed", false},
		{"a cancellation with a member", open + "/cancel", `{"reason":"x"}`, "/problems/malformed", false},
		{"a cancellation that is no object", open + "/cancel", `[]`, "/problems/malformed", false},
		{"a cancellation after the outcome", charge + "/cancel", ``, "/problems/conflict", true},
		{"a cancellation of a charge that is not there", nowhere + "/cancel", `{}`, "/problems/not-found", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			key := "key of " + test.name
			key = strings.ReplaceAll(key, " ", "-")
			before := rows(t, w.db)
			first := w.send(t, to(test.path, key, test.body))
			p := readProblem(t, first)
			if p.Type != test.kind || p.Status != first.status {
				t.Errorf("status %d, want %s: %s", first.status, test.kind, first.body)
			}
			added := map[string]int64{}
			if test.stored {
				added["idempotency_keys"] = 1
				if p.RetryWith != "new-key" {
					t.Errorf("retry_with is %q under a key whose answer stays", p.RetryWith)
				}
			}
			wantRows(t, w.db, before, added)
			again := w.send(t, to(test.path, key, test.body))
			if replayed := again.header.Get("Idempotent-Replayed") == "true"; again.body != first.body || replayed != test.stored {
				t.Errorf("replayed %v, want %v: %s", replayed, test.stored, again.body)
			}
			if strings.Contains(first.body, "4242") {
				t.Errorf("the card number is repeated: %s", first.body)
			}
			if expires := first.header.Get("Idempotency-Expires"); (expires != "") != test.stored {
				t.Errorf("Idempotency-Expires is %q", expires)
			}
		})
	}

	t.Run("another merchant's charge is not there", func(t *testing.T) {
		t.Parallel()
		for _, path := range []string{charge + "/refunds", charge + "/cancel"} {
			a := w.send(t, to(path, "key", "{}").with("Authorization", "Bearer "+strangerKey))
			if p := readProblem(t, a); p.Type != "/problems/not-found" || a.status != http.StatusNotFound {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		}
		a := w.send(t, get(charge+"/refunds").with("Authorization", "Bearer "+strangerKey))
		wantProblem(t, a, "/problems/not-found")
	})

	t.Run("a refund that was not requested is not there", func(t *testing.T) {
		t.Parallel()
		wantProblem(t, w.send(t, get(charge+"/refunds/re_1")), "/problems/not-found")
	})
}

func TestTheSameKeyOnAnotherChargeIsAnotherRequest(t *testing.T) {
	t.Parallel()
	w := serve(t)
	one, other := w.captured(t, "one"), w.captured(t, "other")
	w.send(t, to(one+"/refunds", "key", `{"amount":1}`))
	before := rows(t, w.db)
	p := wantProblem(t, w.send(t, to(other+"/refunds", "key", `{"amount":1}`)), "/problems/idempotency-key-reused")
	if len(p.Errors) != 0 {
		t.Errorf("members that differ: %v", p.Errors)
	}
	wantRows(t, w.db, before, nil)
	if a := w.send(t, to(one+"/cancel", "key", "")); a.status != http.StatusConflict || a.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("the same key of another operation: %d, %s", a.status, a.body)
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
