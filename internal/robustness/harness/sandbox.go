package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Books are the records of the provider and of the merchant's webhook receiver: the
// sandbox's GET /books.
type Books struct {
	Intents              []Intent       `json:"intents"`
	Captures             []Money        `json:"captures"`
	Refunds              []Money        `json:"refunds"`
	Notifications        []Notification `json:"notifications"`
	Requests             int            `json:"requests"`
	DuplicatesSuppressed int            `json:"duplicates_suppressed"`
}

// Intent is a payment intent.
type Intent struct {
	Reference       string `json:"reference"`
	ChargeReference string `json:"charge_reference"`
	ID              string `json:"id"`
	Status          string `json:"status"`
	Captures        int    `json:"captures"`
}

// Money is a captured payment, or a refund that was paid.
type Money struct {
	Reference       string `json:"reference"`
	ChargeReference string `json:"charge_reference"` // of a captured payment
	PaymentIntent   string `json:"payment_intent"`
	Amount          int64  `json:"amount"`
}

// Notification is a webhook as the merchant received it.
type Notification struct {
	WebhookID  string `json:"webhook_id"`
	Reference  string `json:"reference"`
	Type       string `json:"type"`
	Deliveries int    `json:"deliveries"`
	Effects    int    `json:"effects"`
}

// Redelivered is how many deliveries there were beyond the first of each.
func (b Books) Redelivered() (n int) {
	for _, notified := range b.Notifications {
		n += max(0, notified.Deliveries-1)
	}
	return n
}

// Faults are the probabilities with which a provider or shop request fails.
type Faults struct {
	Seed       uint64  `json:"seed,omitempty"`
	DropBefore float64 `json:"drop_before,omitempty"`
	DropAfter  float64 `json:"drop_after,omitempty"`
	Error500   float64 `json:"error_500,omitempty"`
	Slow       Slow    `json:"slow"`
	ShopDown   bool    `json:"shop_down,omitempty"`
}

// Slow delays requests.
type Slow struct {
	P            float64 `json:"p"`
	Milliseconds int     `json:"ms"`
}

// Repeated counts the provider's webhooks that were sent once more.
type Repeated struct {
	Events    int `json:"events"`
	Sent      int `json:"sent"`
	Delivered int `json:"delivered"`
}

// Sandbox calls the controls of the sandbox at a URL, which no fault touches.
type Sandbox string

// Books reads the records.
func (s Sandbox) Books(ctx context.Context) (b Books, err error) {
	return b, s.call(ctx, http.MethodGet, "/books", nil, &b)
}

// Dispute opens a dispute of a payment intent or, with an outcome, ends it.
func (s Sandbox) Dispute(ctx context.Context, intent, outcome string) error {
	return s.call(ctx, http.MethodPost, "/dispute", map[string]string{"payment_intent": intent, "outcome": outcome}, nil)
}

// Refund refunds a part of a payment intent outside the service.
func (s Sandbox) Refund(ctx context.Context, intent string, amount int64) error {
	return s.call(ctx, http.MethodPost, "/refund", map[string]any{"payment_intent": intent, "amount": amount}, nil)
}

// SetFaults replaces the faults; the zero value is none.
func (s Sandbox) SetFaults(ctx context.Context, f Faults) error {
	return s.call(ctx, http.MethodPut, "/faults", f, nil)
}

// RepeatWebhooks makes the provider send every event that it has sent so often once
// more, and returns when it has tried to.
func (s Sandbox) RepeatWebhooks(ctx context.Context, times int) (done Repeated, err error) {
	return done, s.call(ctx, http.MethodPost, "/duplicate-webhooks", map[string]int{"times": times}, &done)
}

// call sends and receives JSON; either may be nil.
func (s Sandbox) call(ctx context.Context, method, path string, send, receive any) error {
	const timeout = 30 * time.Second // to repeat webhooks takes up to 20 s
	body, err := json.Marshal(send)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, string(s)+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Close = true // one that was idle may end meanwhile
	r, err := Exchange(&http.Client{Timeout: timeout}, request)
	switch {
	case err != nil:
		return fmt.Errorf("ask the sandbox: %w", err)
	case r.Status/100 != 2:
		return fmt.Errorf("ask the sandbox: %s %s: answered %d %s", method, path, r.Status, r.Body)
	case receive == nil:
		return nil
	}
	return json.Unmarshal(r.Body, receive)
}
