package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/testrun"
)

// Payment methods of the sandbox, which are Stripe's.
const (
	visa         = "pm_card_visa"
	cardDeclined = "pm_card_chargeDeclined"
	nobodysCard  = "pm_card_of_nobody"
	needsAction  = "pm_card_authenticationRequired"
)

// order is the body of a request for a charge.
type order struct {
	OrderID       string            `json:"order_id"`
	Amount        int64             `json:"amount"`
	Currency      string            `json:"currency"`
	PaymentMethod string            `json:"payment_method"`
	Customer      string            `json:"customer,omitempty"`
	Items         []item            `json:"items,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	ReturnURL     string            `json:"return_url,omitempty"`
	ExpiresAt     string            `json:"expires_at,omitempty"`
}

type item struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}

// newAction is an order whose customer has to authenticate, and can be sent to a page.
func newAction() order {
	o := newOrder(needsAction)
	o.ReturnURL = "https://shop.example/back"
	return o
}

// newOrder is an order of 10.00 with one t-shirt, unless other items are given.
func newOrder(method string, items ...item) order {
	if items == nil {
		items = []item{{"tshirt", 1}}
	}
	return order{OrderID: "order-" + unique(), Amount: 1000, Currency: "USD", PaymentMethod: method, Items: items}
}

func (o order) body(t *testing.T) []byte {
	t.Helper()
	body, err := json.Marshal(o)
	must(t, err)
	return body
}

// charge is what the API shows.
type charge struct {
	ID        string    `json:"id"`
	OrderID   string    `json:"order_id"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	Status    string    `json:"status"`
	Steps     []step    `json:"steps"`
	Failure   *failure  `json:"failure"`
	CreatedAt time.Time `json:"created_at"`
	Next      struct {
		URL string `json:"url"`
	} `json:"next_action"`
}

type step struct {
	Name   string `json:"name"`
	Status string `json:"status"`
}

type failure struct {
	Code        string `json:"code"`
	Message     string `json:"message"`
	DeclineCode string `json:"decline_code"`
}

// steps are the statuses of inventory, payment and notification, in one line.
func (c charge) steps() string {
	var line []string
	for _, s := range c.Steps {
		line = append(line, s.Name+" "+s.Status)
	}
	return strings.Join(line, ", ")
}

// over reports whether the charge has its outcome and the merchant is notified.
func (c charge) over() bool {
	return c.Status != "" && c.Status != "pending" &&
		!slices.ContainsFunc(c.Steps, func(s step) bool { return s.Status == "pending" })
}

type event struct {
	Version    int             `json:"version"`
	ID         string          `json:"id"`
	Type       string          `json:"type"`
	Data       json.RawMessage `json:"data"`
	RecordedAt time.Time       `json:"recorded_at"`
}

// accept posts an order under a new key and returns the charge as it was accepted.
func (c *client) accept(ctx context.Context, o order) (charge, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return charge{}, err
	}
	got, err := c.insist(ctx, request{key: "key-" + unique(), body: body})
	var accepted charge
	if err != nil || got.Status != http.StatusAccepted || json.Unmarshal(got.Body, &accepted) != nil {
		return charge{}, fmt.Errorf("a charge is answered %d %s: %w", got.Status, got.Body, err)
	}
	return accepted, nil
}

func (d *deployment) send(t *testing.T, o order) charge {
	t.Helper()
	c, err := d.client.accept(t.Context(), o)
	must(t, err)
	return c
}

func acceptedCharge(t *testing.T, got answer) charge {
	t.Helper()
	var c charge
	if err := json.Unmarshal(got.Body, &c); err != nil || got.Status != http.StatusAccepted || c.ID == "" {
		t.Fatalf("answered %d %s, want 202 and a charge", got.Status, got.Body)
	}
	return c
}

// charge reads a charge; none while it cannot be read.
func (d *deployment) charge(ctx context.Context, id string) charge {
	got, err := d.client.do(ctx, request{method: http.MethodGet, path: "/v1/charges/" + id})
	var c charge
	if err != nil || got.Status != http.StatusOK || json.Unmarshal(got.Body, &c) != nil {
		return charge{}
	}
	return c
}

// await waits until a charge has its outcome and the merchant is notified.
func (d *deployment) await(t *testing.T, id string) charge {
	t.Helper()
	var c charge
	testrun.Progress(t, "charge "+id+" has its outcome and the merchant is notified", func() (string, bool) {
		c = d.charge(t.Context(), id)
		if c.over() {
			return "", true
		}
		return c.Status + " with " + c.steps() + "; messages: " + d.messagesOf(t, id), false
	})
	return c
}

// mustSucceed waits for a charge's outcome.
func (d *deployment) mustSucceed(t *testing.T, id string) {
	t.Helper()
	if got := d.await(t, id); got.Status != "succeeded" {
		t.Errorf("charge %s is %s, %+v", id, got.Status, got.Failure)
	}
}

// process sends an order and waits for its outcome.
func (d *deployment) process(t *testing.T, o order) charge {
	t.Helper()
	return d.await(t, d.send(t, o).ID)
}

func (d *deployment) events(t *testing.T, id string) []event {
	t.Helper()
	var page struct {
		Data []event `json:"data"`
	}
	d.get(t, "/v1/charges/"+id+"/events", &page)
	return page.Data
}

// story are the types of a charge's events. Versions must count from 1.
func (d *deployment) story(t *testing.T, id string) []string {
	t.Helper()
	var story []string
	for i, e := range d.events(t, id) {
		if e.Version != i+1 {
			t.Errorf("%s: version %d stands where %d should", id, e.Version, i+1)
		}
		name, version, _ := strings.Cut(e.Type, ".v")
		if version == "" || e.ID == "" || e.RecordedAt.IsZero() {
			t.Errorf("%s: event %+v lacks something", id, e)
		}
		story = append(story, name)
	}
	return story
}

// flow is traffic in flight: clients that send one charge after another and retry each
// until it is answered.
type flow struct {
	requests []request
	answered atomic.Int64
	all      sync.WaitGroup
}

// flowing starts n charges, each under a key of its own, by some clients at a
// time. The methods of payment come in turn.
func (d *deployment) flowing(t *testing.T, n, clients int, methods ...string) *flow {
	t.Helper()
	f := &flow{}
	for i := range n {
		f.requests = append(f.requests, request{key: "key-" + unique(), body: newOrder(methods[i%len(methods)]).body(t)})
	}
	ctx := t.Context()
	work := make(chan request, n)
	for _, r := range f.requests {
		work <- r
	}
	close(work)
	for range clients {
		f.all.Go(func() {
			for r := range work {
				got, err := d.client.insist(ctx, r)
				f.answered.Add(1)
				if err != nil || got.Status != http.StatusAccepted {
					t.Errorf("%s was answered %d %s, %v", r.key, got.Status, got.Body, err)
				}
			}
		})
	}
	return f
}

// awaitAnswered waits until so many charges were answered.
func (f *flow) awaitAnswered(t *testing.T, n int) {
	t.Helper()
	testrun.True(t, fmt.Sprintf("%d of %d charges are answered", n, len(f.requests)), func() bool {
		return f.answered.Load() >= int64(n)
	})
}

// finish waits for all answers, and asks for each of them once more.
func (f *flow) finish(t *testing.T, d *deployment) {
	t.Helper()
	f.all.Wait()
	for _, r := range f.requests {
		if _, err := d.client.insist(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
}
