package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// client is a merchant. It records the keys that it sent and what was accepted under them.
type client struct {
	*harness.Client

	mu       sync.Mutex
	keys     []string
	accepted map[string]answer
	forgets  bool // the service may: the last answer counts
	lost     int  // answers that it has forgotten
}

// count is how many keys were accepted.
func (c *client) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.accepted)
}

type (
	request = harness.Request
	answer  = harness.Response
)

// newClient makes a client patient: a program that dies closes its
// connections, so a client waits only for a machine that is busy.
func newClient(c *harness.Client) *client {
	c.HTTP.Timeout = testrun.Stall
	return &client{Client: c, accepted: map[string]answer{}}
}

// errDiffers says that one key was accepted with two answers.
var errDiffers = errors.New("one key has two answers")

// note records an accepted answer, which must equal the first one under its key.
func (c *client) note(key string, got answer) error {
	if got.Status != http.StatusAccepted || key == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first, known := c.accepted[key]
	if !known || c.forgets {
		if c.accepted[key] = got; known && !bytes.Equal(first.Body, got.Body) {
			c.lost++
		}
		return nil
	}
	if !bytes.Equal(first.Body, got.Body) {
		return fmt.Errorf("%w, %s and %s", errDiffers, first.Body, got.Body)
	}
	for _, name := range []string{"Content-Type", "Location", "Idempotency-Key", "Idempotency-Expires"} {
		if x, y := first.Header.Get(name), got.Header.Get(name); x != y {
			return fmt.Errorf("%w, with %s %q and %q", errDiffers, name, x, y)
		}
	}
	return nil
}

// insist retries a request under the same key until it has a definitive answer. The error is errDiffers where
// the key had another answer before.
func (c *client) insist(ctx context.Context, r request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, testrun.Stall)
	defer cancel()
	if r.Key != "" {
		c.mu.Lock()
		c.keys = append(c.keys, r.Key)
		c.mu.Unlock()
	}
	got, err := c.Insist(ctx, r)
	if err == nil {
		err = c.note(r.Key, got)
	}
	return got, err
}

// get reads a path until it is answered, and decodes its JSON.
func (c *client) get(ctx context.Context, path string, into any) error {
	got, err := c.insist(ctx, request{Method: http.MethodGet, Path: path})
	if err == nil && got.Status == http.StatusOK {
		err = json.Unmarshal(got.Body, into)
	}
	if err != nil || got.Status != http.StatusOK {
		return fmt.Errorf("%s is answered %d %s: %w", path, got.Status, got.Body, err)
	}
	return nil
}

// fetch reads what needs no API key. It is "" unless the status is 200.
func fetch(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(bounded(t), http.MethodGet, url, http.NoBody)
	must(t, err)
	request.Close = true
	got, err := harness.Exchange(http.DefaultClient, request)
	if err != nil || got.Status != http.StatusOK {
		return ""
	}
	return string(got.Body)
}

// insist sends a request until it has a definitive answer.
func (d *deployment) insist(t *testing.T, r request) answer {
	t.Helper()
	got, err := d.client.insist(t.Context(), r)
	must(t, err)
	return got
}

var (
	must    = testrun.Must
	bounded = testrun.Bounded
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
	Items         []item            `json:"items,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	ReturnURL     string            `json:"return_url,omitempty"`
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

// charge is what the API shows of a charge, or of a refund.
type charge struct {
	ID      string `json:"id"`
	Status  string `json:"status"`
	Steps   []step `json:"steps"`
	Failure struct {
		Code string `json:"code"`
	} `json:"failure"`
	Next struct {
		URL string `json:"url"`
	} `json:"next_action"`
}

type step struct{ Name, Status string }

// over reports whether the charge has its outcome and the merchant is notified.
func (c charge) over() bool {
	return c.Status != "" && c.Status != "pending" &&
		!slices.ContainsFunc(c.Steps, func(s step) bool { return s.Status == "pending" })
}

// accepted is the charge or refund in an answer.
func accepted(got answer, err error) (c charge, _ error) {
	if err == nil && (json.Unmarshal(got.Body, &c) != nil || got.Status != http.StatusAccepted || c.ID == "") {
		err = fmt.Errorf("answered %d %s, want 202 and a charge", got.Status, got.Body)
	}
	return c, err
}

// accept posts an order under a new key and returns the charge as it was accepted.
func (c *client) accept(ctx context.Context, o order) (charge, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return charge{}, err
	}
	return accepted(c.insist(ctx, request{Key: "key-" + unique(), Body: body}))
}

func (d *deployment) send(t *testing.T, o order) charge {
	t.Helper()
	c, err := d.client.accept(t.Context(), o)
	must(t, err)
	return c
}

func acceptedCharge(t *testing.T, got answer) charge {
	t.Helper()
	c, err := accepted(got, nil)
	must(t, err)
	return c
}

// await waits until a charge has its outcome and the merchant is notified.
func (d *deployment) await(t *testing.T, id string) charge {
	t.Helper()
	var c charge
	testrun.Progress(t, "charge "+id+" has its outcome and the merchant is notified", func() (string, bool) {
		c = charge{}
		err := d.client.get(t.Context(), "/v1/charges/"+id, &c)
		return fmt.Sprintf("%s with %v, %v", c.Status, c.Steps, err), err == nil && c.over()
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

// refundRequest asks for a refund under a new key.
func refundRequest(chargeID string, amount int64) request {
	return request{Path: "/v1/charges/" + chargeID + "/refunds", Key: "key-" + unique(), Body: fmt.Appendf(nil, `{"amount":%d}`, amount)}
}

// flow is traffic in flight: clients that send one charge after another and retry each
// until it is answered.
type flow struct {
	requests []request
	all      sync.WaitGroup
}

// flowing starts n charges, each under a key of its own, by some clients at a
// time. The methods of payment come in turn.
func (d *deployment) flowing(t *testing.T, n, clients int, methods ...string) *flow {
	t.Helper()
	f := &flow{}
	for i := range n {
		f.requests = append(f.requests, request{Key: "key-" + unique(), Body: newOrder(methods[i%len(methods)]).body(t)})
	}
	ctx := t.Context()
	work := make(chan request, 2*n)
	for _, r := range f.requests {
		work <- r
		if d.twice {
			work <- r
		}
	}
	close(work)
	for range clients {
		f.all.Go(func() {
			for r := range work {
				got, err := d.client.insist(ctx, r)
				if err != nil || got.Status != http.StatusAccepted {
					t.Errorf("%s was answered %d %s, %v", r.Key, got.Status, got.Body, err)
				}
			}
		})
	}
	return f
}

// accepts waits until so many charges and refunds are accepted in all.
func (d *deployment) accepts(t *testing.T, n int) {
	t.Helper()
	testrun.Progress(t, fmt.Sprintf("%d charges are accepted", n), func() (string, bool) {
		got := d.client.count()
		return strconv.Itoa(got), got >= n
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
