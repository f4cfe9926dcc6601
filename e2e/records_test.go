package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/payonce/payonce/internal/await"
)

// records are what the provider and the shop recorded, independently of the service.
type records struct {
	Intents []struct {
		Reference string `json:"reference"`
		ID        string `json:"id"`
		Status    string `json:"status"`
		Captures  int    `json:"captures"`
	} `json:"intents"`
	Captures []struct {
		Reference     string `json:"reference"`
		PaymentIntent string `json:"payment_intent"`
		Amount        int64  `json:"amount"`
		Currency      string `json:"currency"`
	} `json:"captures"`
	Refunds []struct {
		Reference string `json:"reference"`
		Amount    int64  `json:"amount"`
	} `json:"refunds"`
	Notifications []notification `json:"notifications"`
}

type notification struct {
	WebhookID  string `json:"webhook_id"`
	Reference  string `json:"reference"`
	Type       string `json:"type"`
	Deliveries int    `json:"deliveries"`
	Effects    int    `json:"effects"`
}

// entry is what is recorded of one charge.
type entry struct {
	intents  []string // statuses
	captures int
	notified []notification
}

func (r records) of(id string) entry {
	var e entry
	for _, in := range r.Intents {
		if in.Reference == id {
			e.intents = append(e.intents, in.Status)
		}
	}
	for _, c := range r.Captures {
		if c.Reference == id {
			e.captures++
		}
	}
	for _, n := range r.Notifications {
		if n.Reference == id {
			e.notified = append(e.notified, n)
		}
	}
	return e
}

// faults are the failures that the sandbox simulates.
type faults struct {
	Seed       int64   `json:"seed,omitempty"`
	DropBefore float64 `json:"drop_before,omitempty"`
	DropAfter  float64 `json:"drop_after,omitempty"`
	Error500   float64 `json:"error_500,omitempty"`
	Slow       slow    `json:"slow"`
	ShopDown   bool    `json:"shop_down,omitempty"`
}

type slow struct {
	P  float64 `json:"p"`
	MS int64   `json:"ms"`
}

func (d *deployment) records(t *testing.T) records {
	t.Helper()
	var r records
	d.control(t, http.MethodGet, "/books", nil, &r)
	return r
}

func (d *deployment) injectFaults(t *testing.T, f faults) {
	t.Helper()
	d.control(t, http.MethodPut, "/faults", f, nil)
}

func (d *deployment) clearFaults(t *testing.T) {
	t.Helper()
	d.control(t, http.MethodDelete, "/faults", nil, nil)
}

// control calls the sandbox's own API, which the service does not use.
func (d *deployment) control(t *testing.T, method, path string, send, receive any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), await.Stall)
	defer cancel()
	var body bytes.Buffer
	if send != nil {
		if err := json.NewEncoder(&body).Encode(send); err != nil {
			t.Fatal(err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, d.sandbox.URL()+path, &body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusBadRequest {
		t.Fatalf("%s %s: answered %s", method, path, response.Status)
	}
	if receive == nil {
		return
	}
	if err := json.NewDecoder(response.Body).Decode(receive); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
}
