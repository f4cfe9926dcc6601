package httpapi_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// members decodes a JSON object.
func members(t *testing.T, raw string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(raw), &object); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return object
}

func TestCreateCharge(t *testing.T) {
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	began := time.Now()
	first := w.accept(t, "key-1", body("items", `[{"sku":"tshirt","quantity":2}]`, "metadata", `{"channel":"web"}`))

	t.Run("the answer is the pending charge", func(t *testing.T) {
		got := members(t, first.body)
		id, _ := got["id"].(string)
		if !regexp.MustCompile(`^ch_[0-9a-f]{32}$`).MatchString(id) {
			t.Errorf("id is %q", id)
		}
		createdAt, _ := got["created_at"].(string)
		created, err := time.Parse(time.RFC3339, createdAt)
		if err != nil || created.Sub(began).Abs() > time.Minute || !strings.HasSuffix(createdAt, "Z") {
			t.Errorf("created_at is %q: %v", createdAt, err)
		}
		delete(got, "id")
		delete(got, "created_at")
		step := func(name string) map[string]any { return map[string]any{"name": name, "status": "pending"} }
		want := map[string]any{
			"order_id": "order-1", "amount": 2000.0, "amount_refunded": 0.0, "currency": "USD",
			"status": "pending", "steps": []any{step("inventory"), step("payment"), step("notification")},
			"failure": nil, "metadata": map[string]any{"channel": "web"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("charge (-want +got):\n%s", diff)
		}
	})

	t.Run("the headers say where, until when and under which key", func(t *testing.T) {
		id, _ := members(t, first.body)["id"].(string)
		got := map[string]string{}
		for _, name := range []string{"Content-Type", "Location", "Idempotency-Key", "Idempotent-Replayed"} {
			got[name] = first.header.Get(name)
		}
		want := map[string]string{
			"Content-Type": "application/json", "Location": "/v1/charges/" + id,
			"Idempotency-Key": "key-1", "Idempotent-Replayed": "",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("headers (-want +got):\n%s", diff)
		}
		expires, err := time.Parse(http.TimeFormat, first.header.Get("Idempotency-Expires"))
		if err != nil || expires.Sub(began.Add(retention)).Abs() > time.Minute {
			t.Errorf("Idempotency-Expires is %s: %v", expires, err)
		}
		if first.header.Get("X-Request-Id") == "" {
			t.Error("X-Request-Id is missing")
		}
	})

	t.Run("it is stored once: its key, its event, the posting and the message", func(t *testing.T) {
		wantRows(t, w.db, before, ofOneCharge())
	})
}

func TestChargeWithoutItemsOrWebhook(t *testing.T) {
	t.Parallel()
	w := serve(t)
	a := w.send(t, post("key-1", body()).with("Authorization", "Bearer "+strangerKey))
	if a.status != http.StatusAccepted {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	want := []any{
		map[string]any{"name": "inventory", "status": "skipped"},
		map[string]any{"name": "payment", "status": "pending"},
		map[string]any{"name": "notification", "status": "skipped"},
	}
	got := members(t, a.body)
	if diff := cmp.Diff(want, got["steps"]); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]any{}, got["metadata"]); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	w := serve(t)
	accepted := w.accept(t, "key-1", body("description", `"two shirts"`))
	path := accepted.header.Get("Location")

	t.Run("a charge is read as it was answered", func(t *testing.T) {
		a := w.send(t, get(path))
		if a.status != http.StatusOK || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("status %d, Content-Type %s", a.status, a.header.Get("Content-Type"))
		}
		if diff := cmp.Diff(members(t, accepted.body), members(t, a.body)); diff != "" {
			t.Errorf("charge (-answered +read):\n%s", diff)
		}
	})

	t.Run("the stream is its first event", func(t *testing.T) {
		a := w.send(t, get(path+"/events"))
		events, _ := members(t, a.body)["data"].([]any)
		if a.status != http.StatusOK || len(events) != 1 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		event, _ := events[0].(map[string]any)
		data, _ := event["data"].(map[string]any)
		if event["version"] != 1.0 || event["type"] != "charge.requested.v1" || data["order_id"] != "order-1" {
			t.Errorf("event: %s", a.body)
		}
		recorded, _ := event["recorded_at"].(string)
		if _, err := time.Parse(time.RFC3339, recorded); err != nil {
			t.Errorf("recorded_at: %v", err)
		}
		if id, _ := event["id"].(string); len(id) != 36 || len(event) != 5 {
			t.Errorf("members of an event: %s", a.body)
		}
	})

	t.Run("the books hold what is owed, and add up to zero", func(t *testing.T) {
		a := w.send(t, get("/v1/balances"))
		got := members(t, a.body)
		account := func(name string, debits, credits float64) map[string]any {
			return map[string]any{
				"account": name, "currency": "USD", "debits": debits, "credits": credits, "balance": debits - credits,
			}
		}
		want := map[string]any{
			"data":           []any{account("customer_receivable:acme", 2000, 0), account("merchant_pending:acme", 0, 2000)},
			"as_of_position": 1.0,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("balances (-want +got):\n%s", diff)
		}
	})

	t.Run("the audit finds nothing wrong", func(t *testing.T) {
		w := serve(t) // no worker runs here, and a message that nobody receives for long is wrong
		w.accept(t, "key-1", body())
		a := w.send(t, get("/v1/audit"))
		got := members(t, a.body)
		if checks, _ := got["checks"].([]any); got["ok"] != true || len(checks) == 0 {
			t.Errorf("audit: %s", a.body)
		}
	})
}
