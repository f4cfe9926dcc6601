package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/valyala/fasthttp"
)

// external are the services that the programs call: a Stripe-compatible provider that
// answers at once, and the merchants' receiver of webhooks. They run in the process of the
// load generator, apart from what is measured, and count how often each thing was done.
type external struct {
	server *fasthttp.Server
	url    string

	mu       sync.Mutex
	captured map[string]bool          // by charge
	twice    int                      // captures of what was captured already, and webhooks of what had ended
	webhooks map[string]bool          // by webhook id
	expected map[string]chan struct{} // of charges in flight, closed by their webhooks
	intents  map[string]*intent       // by id, and by the key of its creation
}

type intent struct {
	id, reference, amount, currency string
	confirmed                       bool
}

func openExternal() (*external, error) {
	e := &external{
		captured: map[string]bool{}, webhooks: map[string]bool{}, expected: map[string]chan struct{}{},
		intents: map[string]*intent{},
	}
	e.server = &fasthttp.Server{Handler: e.serve, NoDefaultServerHeader: true, Logger: log.New(io.Discard, "", 0)}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return nil, fmt.Errorf("listen for the programs' calls: %w", err)
	}
	e.url = "http://" + listener.Addr().String()
	go func() { _ = e.server.Serve(listener) }() // until close
	return e, nil
}

func (e *external) close() { _ = e.server.Shutdown() } // nothing calls any more

func (e *external) serve(c *fasthttp.RequestCtx) {
	const intents = "/v1/payment_intents"
	path := string(c.Path())
	e.mu.Lock()
	defer e.mu.Unlock()
	switch id, confirms := strings.CutSuffix(strings.TrimPrefix(path, intents+"/"), "/confirm"); {
	case path == "/v1/account":
		c.SetContentType("application/json")
		c.SetBodyString(`{"id":"acct_bench","object":"account"}`)
	case path == "/shop":
		e.shop(c)
	case path == intents && c.IsPost():
		e.create(c)
	case strings.HasPrefix(path, intents+"/") && (confirms || c.IsGet()):
		in := e.intents[id]
		if in != nil && confirms && !in.confirmed { // which captures it once
			in.confirmed = true
			if e.captured[in.reference] {
				e.twice++
			}
			e.captured[in.reference] = true
		}
		answer(c, in)
	default:
		c.Error("no such thing here", fasthttp.StatusNotFound)
	}
}

func (e *external) create(c *fasthttp.RequestCtx) {
	form := c.PostArgs()
	key := string(c.Request.Header.Peek("Idempotency-Key"))
	in := e.intents[key]
	if in == nil {
		in = &intent{
			id:        "pi_" + strconv.Itoa(len(e.intents)/2+1),
			reference: string(form.Peek("metadata[charge_reference]")),
			amount:    string(form.Peek("amount")),
			currency:  string(form.Peek("currency")),
		}
		e.intents[key], e.intents[in.id] = in, in
	}
	answer(c, in)
}

func answer(c *fasthttp.RequestCtx, in *intent) {
	c.SetContentType("application/json")
	if in == nil {
		c.SetStatusCode(fasthttp.StatusNotFound)
		c.SetBodyString(`{"error":{"type":"invalid_request_error","code":"resource_missing"}}`)
		return
	}
	status, received, charge := "requires_confirmation", "0", "null"
	if in.confirmed {
		status, received, charge = "succeeded", in.amount, `"ch_of_`+in.id+`"`
	}
	_, _ = fmt.Fprintf(c, `{"id":%q,"object":"payment_intent","amount":%s,"amount_capturable":0,"amount_received":%s,`+
		`"capture_method":"automatic","confirmation_method":"automatic","created":1760000000,"currency":%q,`+
		`"last_payment_error":null,"latest_charge":%s,"livemode":false,"metadata":{"charge_reference":%q},`+
		`"payment_method":"pm_card_visa","payment_method_types":["card"],"status":%q}`,
		in.id, in.amount, received, in.currency, charge, in.reference, status)
}

// shop takes a webhook, and knows a repeated one by its id. It does not check the
// signature: that is the merchant's processor time.
func (e *external) shop(c *fasthttp.RequestCtx) {
	var event struct {
		Data struct {
			Order string `json:"order_id"`
		}
	}
	err := json.Unmarshal(c.PostBody(), &event)
	if err != nil || len(c.Request.Header.Peek("webhook-signature")) == 0 {
		c.Error("no webhook", fasthttp.StatusBadRequest)
		return
	}
	id := string(c.Request.Header.Peek("webhook-id"))
	if !e.webhooks[id] {
		e.webhooks[id] = true
		if ended := e.expected[event.Data.Order]; ended != nil {
			close(ended)
			delete(e.expected, event.Data.Order)
		} else {
			e.twice++
		}
	}
}

// expect returns a channel that the webhook of an order closes.
func (e *external) expect(order string) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expected[order] = make(chan struct{})
	return e.expected[order]
}
