package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// books are what the sandbox wrote down: the truth about the outside world.
type books struct {
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

// entry is what the books say of one charge.
type entry struct {
	intents  []string // statuses
	captures int
	told     []notification
}

func (b books) of(id string) entry {
	var e entry
	for _, in := range b.Intents {
		if in.Reference == id {
			e.intents = append(e.intents, in.Status)
		}
	}
	for _, c := range b.Captures {
		if c.Reference == id {
			e.captures++
		}
	}
	for _, n := range b.Notifications {
		if n.Reference == id {
			e.told = append(e.told, n)
		}
	}
	return e
}

// faults are what the sandbox is asked to break.
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

func (w *world) books(t *testing.T) books {
	t.Helper()
	var b books
	w.control(t, http.MethodGet, "/books", nil, &b)
	return b
}

func (w *world) breakOutside(t *testing.T, f faults) {
	t.Helper()
	w.control(t, http.MethodPut, "/faults", f, nil)
}

func (w *world) mendOutside(t *testing.T) {
	t.Helper()
	w.control(t, http.MethodDelete, "/faults", nil, nil)
}

// control calls the sandbox outside what the service uses of it.
func (w *world) control(t *testing.T, method, path string, send, receive any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
	defer cancel()
	var body bytes.Buffer
	if send != nil {
		if err := json.NewEncoder(&body).Encode(send); err != nil {
			t.Fatal(err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, w.sandbox.URL()+path, &body)
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
