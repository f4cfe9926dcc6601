package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// outside is everybody that the carriers call: a Stripe-compatible provider that
// answers at once unless it is told to be slow, the merchant's webhook receiver, and the address that the
// engine's middle step posts to. It runs beside the load generator, apart from
// what is measured, and keeps books of how often each thing was done.
type outside struct {
	server   *fasthttp.Server
	url      string
	webhook  func(order string) // told of every webhook that is new
	failed   chan error
	posted   books
	captured books
	told     books
	slow     time.Duration // of each answer of the provider; set before anybody calls

	mu      sync.Mutex
	intents map[string]intent // by id
	keys    map[string]string // idempotency key → id
}

type intent struct {
	reference, amount, currency string
	confirmed                   bool
}

// books count how often something was done, by its name.
type books struct {
	mu    sync.Mutex
	times map[string]int
}

// enter returns how often it was done before.
func (b *books) enter(name string) (before int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.times == nil {
		b.times = map[string]int{}
	}
	before = b.times[name]
	b.times[name]++
	return before
}

// sum is how many there are, and how many of them more than once.
func (b *books) sum() (names, repeated int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, times := range b.times {
		if times > 1 {
			repeated++
		}
	}
	return len(b.times), repeated
}

func openOutside(webhook func(order string)) (*outside, error) {
	o := &outside{
		webhook: webhook, failed: make(chan error, 1),
		intents: map[string]intent{}, keys: map[string]string{},
	}
	o.server = &fasthttp.Server{Handler: o.serve, NoDefaultServerHeader: true, Logger: silent{}}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return nil, fmt.Errorf("listen for the carriers' calls: %w", err)
	}
	o.url = "http://" + listener.Addr().String()
	go func() { o.failed <- o.server.Serve(listener) }()
	return o, nil
}

// silent drops the server's lines about connections that their clients closed.
type silent struct{}

func (silent) Printf(string, ...any) {}

func (o *outside) close() error {
	return errors.Join(o.server.Shutdown(), <-o.failed)
}

func (o *outside) serve(c *fasthttp.RequestCtx) {
	const intents = "/v1/payment_intents"
	path := string(c.Path())
	if o.slow > 0 && strings.HasPrefix(path, intents) {
		<-time.After(o.slow) // holds a goroutine, and no processor
	}
	switch id, confirms := strings.CutSuffix(strings.TrimPrefix(path, intents+"/"), "/confirm"); {
	case path == "/post":
		o.posted.enter(string(c.PostBody()))
		c.SetBodyString("done")
	case path == "/shop":
		o.shop(c)
	case path == intents && c.IsPost():
		o.create(c)
	case strings.HasPrefix(path, intents+"/") && confirms:
		o.confirm(c, id)
	case strings.HasPrefix(path, intents+"/") && c.IsGet():
		o.mu.Lock()
		in, found := o.intents[id]
		o.mu.Unlock()
		answer(c, id, in, found)
	default:
		c.Error("no such thing here", fasthttp.StatusNotFound)
	}
}

func (o *outside) create(c *fasthttp.RequestCtx) {
	form := c.PostArgs()
	o.mu.Lock()
	defer o.mu.Unlock()
	key := string(c.Request.Header.Peek("Idempotency-Key"))
	id, known := o.keys[key]
	if !known {
		id = "pi_" + strconv.Itoa(len(o.intents)+1)
		o.keys[key] = id
		o.intents[id] = intent{
			reference: string(form.Peek("metadata[charge_id]")),
			amount:    string(form.Peek("amount")),
			currency:  string(form.Peek("currency")),
		}
	}
	answer(c, id, o.intents[id], true)
}

// confirm takes the money, of an intent that has it already not again.
func (o *outside) confirm(c *fasthttp.RequestCtx, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	in, found := o.intents[id]
	if found && !in.confirmed {
		in.confirmed = true
		o.intents[id] = in
		o.captured.enter(in.reference)
	}
	answer(c, id, in, found)
}

func answer(c *fasthttp.RequestCtx, id string, in intent, found bool) {
	c.SetContentType("application/json")
	if !found {
		c.SetStatusCode(fasthttp.StatusNotFound)
		c.SetBodyString(`{"error":{"type":"invalid_request_error","code":"resource_missing"}}`)
		return
	}
	status, received, charge := "requires_confirmation", "0", "null"
	if in.confirmed {
		status, received, charge = "succeeded", in.amount, `"ch_of_`+id+`"`
	}
	_, _ = fmt.Fprintf(c, `{"id":%q,"object":"payment_intent","amount":%s,"amount_capturable":0,"amount_received":%s,`+
		`"capture_method":"automatic","confirmation_method":"automatic","created":1760000000,"currency":%q,`+
		`"last_payment_error":null,"latest_charge":%s,"livemode":false,"metadata":{"charge_id":%q},`+
		`"payment_method":"pm_card_visa","payment_method_types":["card"],"status":%q}`,
		id, in.amount, received, in.currency, charge, in.reference, status)
}

// shop takes a webhook, and knows a repeated one by its id. Its signature is not
// looked at: that is the shop's time and nobody else's.
func (o *outside) shop(c *fasthttp.RequestCtx) {
	order := member(c.PostBody(), "order_id")
	if len(c.Request.Header.Peek("webhook-signature")) == 0 || order == "" {
		c.Error("no webhook", fasthttp.StatusBadRequest)
		return
	}
	if o.told.enter(string(c.Request.Header.Peek("webhook-id"))) == 0 && o.webhook != nil {
		o.webhook(order)
	}
}

// member is a text in a JSON document that is known to be plain.
func member(document []byte, name string) string {
	_, after, found := bytes.Cut(document, []byte(`"`+name+`":"`))
	value, _, whole := bytes.Cut(after, []byte(`"`))
	if !found || !whole {
		return ""
	}
	return string(value)
}
