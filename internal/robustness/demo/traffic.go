package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// request is one request under a key, which is sent three times, and what came of it.
type request struct {
	path, key, body string
	together        int    // that are sent at once; the others follow the outcome
	wanted          string // the right outcomes
	amount          int64  // of the charge or refund that it makes; 0 of a cancellation

	answers []harness.Answer // the definitive ones; none of a refund in the provider's dashboard
	made
}

// charge is a request for a charge, and what follows it.
type charge struct {
	request
	kind

	follow []*request // refunds when the charge has ended, or a cancellation a moment after it was accepted
}

// requests are that for the charge, and all that follow it.
func (c *charge) requests() []*request { return append([]*request{&c.request}, c.follow...) }

// kind is a sort of charge.
type kind struct {
	method, items string
	right         string // the right outcomes, and one space between two
	parts         []part // that are refunded in turn, or all at once as rivals
	then          string // what else happens
}

// part is a refund of so many thirds of a charge; of none it is a cancellation.
type part struct {
	thirds int64
	right  string
}

const (
	chargesPath = "/v1/charges"
	visa        = "pm_card_visa"

	mug    = `[{"sku":"mug","quantity":1}]`
	shirts = `[{"sku":"tshirt","quantity":2}]`
	both   = `[{"sku":"mug","quantity":4},{"sku":"tshirt","quantity":1}]`
)

// The outcomes of requests are a status, the code of a failure, or the type of the problem that refuses
// the request. These are in more than one place.
const (
	succeeded   = "succeeded"
	failed      = "failed"
	canceled    = "canceled"
	tooMuch     = "/problems/refund-exceeds-captured"
	notCaptured = "/problems/conflict"
)

// What else happens to a charge.
const (
	canceling = "canceled by the merchant"
	rivals    = "refunded at once"
	outside   = "refunded first in the provider's dashboard"
	won, lost = "won", "lost" // the end of a dispute
)

// kinds begins with the plainest, so that a plan of one charge succeeds.
var kinds = []kind{
	{visa, shirts, succeeded, nil, ""},
	{"pm_card_chargeDeclined", mug, "card_declined", nil, ""},
	{visa, `[{"sku":"poster","quantity":1}]`, succeeded + " out_of_stock", nil, ""}, // too few of them are in stock
	{visa, shirts, succeeded + " " + canceled, []part{{0, succeeded + " " + canceled + " " + notCaptured}}, canceling},
	{"pm_card_refundFail", "[]", succeeded, []part{{3, failed}}, ""},
	{visa, "[]", succeeded, []part{{3, succeeded}}, ""},
	{visa, mug, succeeded, []part{{1, succeeded}, {2, succeeded}, {1, tooMuch}}, ""},
	{visa, both, succeeded, []part{{2, succeeded + " " + tooMuch}, {2, succeeded + " " + tooMuch}}, rivals},
	{visa, mug, succeeded, []part{{2, succeeded}, {2, tooMuch}}, outside},
	{visa, mug, succeeded, nil, won},
	{visa, "[]", succeeded, nil, lost},
	{"pm_card_processing", shirts, succeeded, []part{{1, succeeded}}, ""},
	{visa, mug, succeeded, []part{{4, tooMuch}}, ""},
	{"pm_card_chargeDeclinedInsufficientFunds", both, "card_declined", []part{{1, notCaptured}}, ""},
	{"pm_card_authenticationRequired", mug, "authentication_required", nil, ""},
	{"pm_card_of_nobody", mug, "provider_refused", nil, ""},
	{visa, `[{"sku":"tshirt","quantity":1},{"sku":"unicorn","quantity":1}]`, "unknown_sku", nil, ""},
}

// newCharges are n charges, equally many of each kind. The same seed, number and name give the same ones. The name
// separates the orders and keys of one run from those of another.
func newCharges(seed uint64, n int, name string) (all []*charge) {
	r := mathrand.New(mathrand.NewPCG(seed, 0)) //nolint:gosec // charges must be repeatable, not secret
	for i, which := range r.Perm(n) {
		all = append(all, newCharge(r, kinds[which%len(kinds)], fmt.Sprintf("%s-%04d", name, i+1)))
	}
	return all
}

func newCharge(r *mathrand.Rand, k kind, name string) *charge {
	currencies := []string{"EUR", "USD", "GBP", "JPY"} // with the same minor unit in ISO 4217 and at Stripe
	third, currency := 100+r.Int64N(15_000), currencies[r.IntN(len(currencies))]
	c := &charge{kind: k}
	c.request = request{
		path: chargesPath, key: "key-" + name, together: 1 + r.IntN(3), wanted: k.right,
		amount: 3 * third, body: chargeBody("order-"+name, 3*third, currency, k.method, k.items),
	}
	for i, p := range k.parts {
		next := &request{path: "/refunds", key: fmt.Sprintf("%s-%c", c.key, 'a'+i), together: 2, wanted: p.right, amount: p.thirds * third}
		if next.body = fmt.Sprintf(`{"amount":%d}`, next.amount); k.then == canceling {
			next.path, next.body = "/cancel", ""
		}
		c.follow = append(c.follow, next)
	}
	return c
}

// chargeBody is the body of a request for a charge. The items are JSON.
func chargeBody(order string, amount int64, currency, method, items string) string {
	return fmt.Sprintf(`{"order_id":%q,"amount":%d,"currency":%q,"payment_method":%q,"items":%s,"metadata":{"source":"demo"}}`,
		order, amount, currency, method, items)
}

// newRunName is short: with a number behind it, it has too few digits for a card number.
func newRunName() string { return strings.ToLower(rand.Text()[:8]) }

// made is a charge or a refund as GET shows it.
type made struct {
	ID      string `json:"id"`
	Status  string `json:"status"`
	Amount  int64  `json:"amount"`
	Failure struct {
		Code string `json:"code"`
	} `json:"failure"`
}

// outcome is succeeded, also of a charge that was refunded since, the code of the failure, the type
// of the problem that refused the request, or the status.
func (r *request) outcome() string {
	switch {
	case r.ID == "" && len(r.answers) > 0:
		return r.answers[0].Problem()
	case r.Status == "partially_refunded", r.Status == "refunded":
		return succeeded
	case r.Failure.Code != "":
		return r.Failure.Code
	}
	return r.Status
}

func (r *request) hasEnded() bool { return r.outcome() == succeeded || r.Status == failed }

// run sends every charge, a pause after the one before, notes what came of it, and returns when all have ended,
// or ctx has. A request without a definitive answer is retried under the same key.
func (d *Demo) run(ctx context.Context, charges []*charge, pause time.Duration) {
	const most = 64 // at a time
	var all errgroup.Group
	all.SetLimit(most)
	for _, c := range charges {
		all.Go(func() error { d.process(ctx, c); return nil })
		_ = harness.Wait(ctx, pause) // processing ends at once where ctx has
	}
	_ = all.Wait()
}

// send sends a request about a location: some at once and, when what was accepted has ended, the
// others. Those in between are about what was accepted, and are sent before it ends.
func (d *Demo) send(ctx context.Context, about string, r *request, between ...*request) {
	r.answers = d.PostAll(ctx, r.together, about+r.path, r.key, []byte(r.body))
	if len(r.answers) > 0 && r.answers[0].Status == http.StatusAccepted {
		d.inFlight.Add(1)
		for _, next := range between {
			d.send(ctx, r.answers[0].Location, next)
		}
		_ = d.Await(ctx, r.answers[0].Location, &r.made, r.hasEnded)
		d.inFlight.Add(-1)
	}
	r.answers = append(r.answers, d.PostAll(ctx, 3-r.together, about+r.path, r.key, []byte(r.body))...)
}

// process sends one charge and what follows it. It stops where ctx ends.
func (d *Demo) process(ctx context.Context, c *charge) {
	between, behind := []*request(nil), c.follow
	if c.then == canceling {
		between, behind = behind, nil
	}
	d.send(ctx, "", &c.request, between...)
	if !c.hasEnded() {
		return
	}
	d.ended.Add(1)
	own := c.answers[0].Location
	var all sync.WaitGroup
	for i, next := range behind {
		switch {
		case c.then == rivals:
			all.Go(func() { d.send(ctx, own, next) })
		case c.then == outside && i == 0:
			d.refundOutside(ctx, own, next)
		default:
			d.send(ctx, own, next)
		}
	}
	all.Wait()
	if c.then == won || c.then == lost {
		_ = d.sandbox.Dispute(ctx, d.intent(ctx, own), c.then)
		var stream json.RawMessage
		_ = d.Await(ctx, own+"/events", &stream, func() bool { return bytes.Contains(stream, []byte(`"charge.dispute_closed.v`)) })
	}
}

// refundOutside refunds in the provider's dashboard, and waits until the service shows it.
func (d *Demo) refundOutside(ctx context.Context, own string, r *request) {
	var now struct {
		Data []made `json:"data"`
	}
	err := d.sandbox.Refund(ctx, d.intent(ctx, own), r.amount)
	if err == nil && d.Await(ctx, own+r.path, &now, func() bool { return len(now.Data) > 0 }) == nil {
		r.made = now.Data[0]
	}
}

// intent is the payment intent by which a charge was captured.
func (d *Demo) intent(ctx context.Context, own string) string {
	books, _ := d.sandbox.Books(ctx)
	for _, captured := range books.Captures {
		if captured.Reference == path.Base(own) {
			return captured.PaymentIntent
		}
	}
	return "" // which the provider refuses, and the audit shows what is missing
}
