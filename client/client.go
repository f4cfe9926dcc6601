// Package client calls payonce. A call names an operation of yours, such as "pay order 17",
// and takes effect once, however often it is repeated and wherever your program dies.
//
//	requests, err := client.OpenFolder("/var/lib/shop/requests")
//	pay, err := client.New("https://pay.example", apiKey, requests)
//	charge, err := pay.Charge(ctx, "pay order 17", api.ChargeRequest{…})
//
// # Guarantees
//
//   - The request and its idempotency key are stored before the first send. A repetition of
//     the operation, in this process or in a later one, sends what is stored: the same bytes
//     under the same key. The client never makes a second key for an operation.
//   - A call is retried while nothing is known of its outcome and while the api says that the
//     request may be sent again: no sooner than Retry-After says, until ctx ends.
//   - An error that is a *RefusalError is the api's answer. Any other error of a call leaves the
//     outcome unknown: repeat the operation, or give it up.
//
// # Limits
//
// What you do after a refusal is yours to decide. Where RetryWith says "new-key", pay under
// another operation, such as "pay order 17, second card". The api forgets answers after some days
// (410 idempotency-key-expired), but no key.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"

	"github.com/google/uuid"

	"github.com/payonce/payonce/client/api"
)

// Client calls one payonce service as one merchant. It may be used concurrently.
type Client struct {
	API *api.ClientWithResponses // every request of the contract, with the same retries

	requests Requests
}

// New returns a client of the service at a URL.
func New(url, apiKey string, requests Requests) (*Client, error) {
	generated, err := api.NewClientWithResponses(url, api.WithHTTPClient(newRetrier()),
		api.WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "Bearer "+apiKey)
			return nil
		}))
	if err != nil {
		return nil, fmt.Errorf("make a client of payonce: %w", err)
	}
	return &Client{generated, requests}, nil
}

// Charge accepts a charge, once for each operation. The charge is as it was accepted:
// API.GetCharge says what became of it.
func (c *Client) Charge(ctx context.Context, operation string, request api.ChargeRequest) (api.Charge, error) {
	kept, err := c.keep(ctx, operation, "charge", request)
	if err != nil {
		return api.Charge{}, err
	}
	answer, err := c.API.CreateChargeWithBodyWithResponse(ctx,
		&api.CreateChargeParams{IdempotencyKey: kept.Key}, contentType, bytes.NewReader(kept.Body))
	return read[api.Charge](operation, answer, err)
}

// Refund gives a charge's money back, once for each operation.
func (c *Client) Refund(ctx context.Context, operation, charge string, request api.RefundRequest) (api.Refund, error) {
	kept, err := c.keep(ctx, operation, "refund "+charge, request)
	if err != nil {
		return api.Refund{}, err
	}
	answer, err := c.API.CreateRefundWithBodyWithResponse(ctx, charge,
		&api.CreateRefundParams{IdempotencyKey: kept.Key}, contentType, bytes.NewReader(kept.Body))
	return read[api.Refund](operation, answer, err)
}

// Cancel asks that a charge be canceled, once for each operation. A capture in flight may be
// faster: the charge's status says who won.
func (c *Client) Cancel(ctx context.Context, operation, charge string) (api.Charge, error) {
	kept, err := c.keep(ctx, operation, "cancel "+charge, struct{}{})
	if err != nil {
		return api.Charge{}, err
	}
	answer, err := c.API.CancelChargeWithBodyWithResponse(ctx, charge,
		&api.CancelChargeParams{IdempotencyKey: kept.Key}, contentType, bytes.NewReader(kept.Body))
	return read[api.Charge](operation, answer, err)
}

// Abandon gives the charge of an operation up. After it no request of the operation makes a
// charge that you do not know of: not even one that is still on its way. If one was accepted,
// it is in the answer, and payonce has asked for its cancellation if it had no outcome.
//
// The operation is stored as abandoned if it was not known.
func (c *Client) Abandon(ctx context.Context, operation string) (api.Abandonment, error) {
	kept, err := c.requests.Keep(ctx, Request{Operation: operation, Key: uuid.NewString(), What: "charge", Body: []byte("{}")})
	switch {
	case err != nil:
		return api.Abandonment{}, fmt.Errorf("store the request of %q: %w", operation, err)
	case kept.What != "charge":
		return api.Abandonment{}, fmt.Errorf("%q is no charge: %w", operation, ErrOtherRequest)
	}
	answer, err := c.API.AbandonIdempotencyKeyWithBodyWithResponse(ctx, kept.Key, nil, contentType, bytes.NewReader([]byte("{}")))
	return read[api.Abandonment](operation, answer, err)
}

const contentType = "application/json"

// ErrOtherRequest says that an operation was called with another request than before. Nothing
// was sent.
var ErrOtherRequest = errors.New("the operation is known with another request")

// keep stores the request of an operation, or returns the one that is stored.
func (c *Client) keep(ctx context.Context, operation, what string, request any) (Request, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return Request{}, fmt.Errorf("encode the request of %q: %w", operation, err)
	}
	kept, err := c.requests.Keep(ctx, Request{Operation: operation, Key: uuid.NewString(), What: what, Body: body})
	switch {
	case err != nil:
		return Request{}, fmt.Errorf("store the request of %q: %w", operation, err)
	case kept.What != what || !sameJSON(kept.Body, body):
		return Request{}, fmt.Errorf("%q: %w", operation, ErrOtherRequest)
	}
	return kept, nil
}

// sameJSON reports whether two texts have the same members and values. Another version of this
// package may order members differently.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
