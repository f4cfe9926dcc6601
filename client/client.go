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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/payonce/payonce/client/api"
)

// Client calls one payonce service as one merchant. It may be used concurrently.
type Client struct {
	base     string
	apiKey   string
	http     *http.Client
	requests Requests
}

// New returns a client of the service at a URL of http or https.
func New(base, apiKey string, requests Requests) (*Client, error) {
	to, err := url.Parse(base)
	if err != nil || to.Scheme != "https" && to.Scheme != "http" || to.Host == "" {
		return nil, fmt.Errorf("make a client of payonce: %q is no URL of http or https", base)
	}
	return &Client{base: strings.TrimSuffix(base, "/"), apiKey: strings.TrimSpace(apiKey), requests: requests, http: &http.Client{
		Timeout: sendTimeout,
		// A redirect would send the request to an address that is not the configured one.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Charge accepts a charge, once for each operation. The charge is as it was accepted:
// GetCharge says what became of it.
func (c *Client) Charge(ctx context.Context, operation string, request api.ChargeRequest) (api.Charge, error) {
	return post[api.Charge](ctx, c, operation, "charge", "/v1/charges", request)
}

// Refund gives a charge's money back, once for each operation.
func (c *Client) Refund(ctx context.Context, operation, charge string, request api.RefundRequest) (api.Refund, error) {
	return post[api.Refund](ctx, c, operation, "refund "+charge, "/v1/charges/"+url.PathEscape(charge)+"/refunds", request)
}

// Cancel asks that a charge be canceled, once for each operation. A capture in flight may be
// faster: the charge's status says who won.
func (c *Client) Cancel(ctx context.Context, operation, charge string) (api.Charge, error) {
	return post[api.Charge](ctx, c, operation, "cancel "+charge, "/v1/charges/"+url.PathEscape(charge)+"/cancel", struct{}{})
}

// Abandon gives the charge of an operation up. After it no request of the operation makes a
// charge that you do not know of: not even one that is still on its way. If one was accepted,
// it is in the answer, and payonce has asked for its cancellation if it had no outcome.
//
// The operation is stored as abandoned if it was not known.
func (c *Client) Abandon(ctx context.Context, operation string) (given api.Abandonment, err error) {
	kept, err := c.keep(ctx, operation, "charge", anything{})
	if err != nil {
		return given, err
	}
	err = c.do(ctx, http.MethodPost, "/v1/idempotency-keys/"+url.PathEscape(kept.Key)+"/abandon", nil, []byte("{}"), &given)
	return given, outcome(operation, err)
}

// GetCharge reads a charge as it is now. While it has no outcome, the api waits for one: up to
// the time given, in whole seconds.
func (c *Client) GetCharge(ctx context.Context, id string, wait time.Duration) (charge api.Charge, err error) {
	prefer := http.Header{"Prefer": {fmt.Sprintf("wait=%d", int(wait.Seconds()))}}
	err = c.do(ctx, http.MethodGet, "/v1/charges/"+url.PathEscape(id), prefer, nil, &charge)
	return charge, err
}

// Get reads anything else of the contract, such as "/v1/charges?order_id=17" into an
// api.ChargePage.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	return c.do(ctx, http.MethodGet, path, nil, nil, into)
}

// post sends the request that is stored for an operation.
func post[T any](ctx context.Context, c *Client, operation, what, path string, request any) (result T, err error) {
	kept, err := c.keep(ctx, operation, what, request)
	if err != nil {
		return result, err
	}
	err = c.do(ctx, http.MethodPost, path, http.Header{"Idempotency-Key": {kept.Key}}, kept.Body, &result)
	return result, outcome(operation, err)
}

// outcome says what an error means for an operation.
func outcome(operation string, err error) error {
	if err == nil {
		return nil
	}
	if _, refused := errors.AsType[*RefusalError](err); refused {
		return fmt.Errorf("%q is refused: %w", operation, err)
	}
	return fmt.Errorf("the outcome of %q is unknown: %w", operation, err)
}

// ErrOtherRequest says that an operation was called with another request than before. Nothing
// was sent.
var ErrOtherRequest = errors.New("the operation is known with another request")

// anything is {} where no request is stored for an operation, and the stored one whatever it asks for.
type anything struct{}

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
	case kept.What != what || request != anything{} && !sameJSON(kept.Body, body):
		return Request{}, fmt.Errorf("%q, a %s: %w", operation, kept.What, ErrOtherRequest)
	}
	return kept, nil
}

// sameJSON reports whether two texts have the same members and values. Another version of this
// package may order members differently.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
