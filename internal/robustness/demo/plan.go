package demo

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// plan is all traffic of a run. The same seed, number and name give the same plan.
type plan struct {
	charges []charge
	stock   map[string]int // the supply of each SKU; nil if others have supplied it
	length  time.Duration  // over which the charges are spread
}

// charge is one charge to be requested, and how.
type charge struct {
	order, key string
	body       []byte
	amount     int64
	currency   string
	outcomes   []string      // the right ones: "succeeded", or the code of the failure
	at         time.Duration // when the first request is sent, counted from the start
	together   int           // of the three requests; the others follow when the charge has ended
	reuse      bool          // another body is sent with the same key
	cancel     bool          // after cancelAfter
	refunds    []refund      // requested when the charge has ended: in turn, or all at once as rivals
	rivals     bool
	disputed   string // how a dispute at the provider ends; "" if there is none

	cancelAfter time.Duration
}

// refund is one refund to be requested, and its right outcomes: its status, or the type of the
// problem that refuses it.
type refund struct {
	key      string
	body     []byte
	amount   int64 // that is returned if it succeeds
	outcomes []string
	outside  bool // in the provider's dashboard, without a request
}

// The outcomes of charges and refunds, and the problems that refuse a refund.
const (
	succeeded   = "succeeded"
	failed      = "failed"
	canceled    = "canceled"
	won         = "won"
	lost        = "lost"
	tooMuch     = "/problems/refund-exceeds-captured"
	notCaptured = "/problems/conflict"
)

// scarceSKU is wanted by more charges than can have it.
const scarceSKU = "poster"

const (
	cardVisa       = "pm_card_visa"
	cardRefundFail = "pm_card_refundFail" // captures; its refund fails
)

type item struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// kind is a sort of charge. The weights are per cent.
type kind struct {
	weight   int
	method   string
	items    []item
	outcomes []string
	cancel   bool
}

// kinds begins with the plainest, so that a plan of one charge succeeds.
var kinds = []kind{
	{22, cardVisa, []item{{"tshirt", 2}}, []string{succeeded}, false},
	{8, "pm_card_chargeDeclined", []item{{"tshirt", 1}}, []string{"card_declined"}, false},
	{8, cardVisa, []item{{scarceSKU, 1}}, []string{succeeded, "out_of_stock"}, false},
	{9, cardVisa, []item{{"tshirt", 3}}, []string{succeeded, canceled}, true},
	{5, cardRefundFail, nil, []string{succeeded}, false},
	{10, cardVisa, nil, []string{succeeded}, false},
	{12, cardVisa, []item{{"mug", 4}, {"tshirt", 1}}, []string{succeeded}, false},
	{5, "pm_card_chargeDeclinedInsufficientFunds", []item{{"mug", 2}, {"tshirt", 1}}, []string{"card_declined"}, false},
	{5, "pm_card_authenticationRequired", []item{{"tshirt", 1}}, []string{"authentication_required"}, false},
	{6, "pm_card_processing", []item{{"tshirt", 1}}, []string{succeeded}, false},
	{5, "pm_card_of_nobody", []item{{"tshirt", 1}}, []string{"provider_refused"}, false},
	{5, cardVisa, []item{{"tshirt", 1}, {"unicorn", 1}}, []string{"unknown_sku"}, false},
}

// newPlan makes a plan of n charges. The name separates the orders and keys of one run from those
// of another.
func newPlan(seed uint64, n int, name string) plan {
	const (
		shortest  = 15 * time.Second // few charges are spread over the time that faults take
		perSecond = 20
	)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a plan must be repeatable, not secret
	p := plan{
		stock:  map[string]int{"tshirt": 100 * n, "mug": 100 * n},
		length: max(shortest, time.Duration(n)*time.Second/perSecond),
	}
	scarce := 0
	for i, kind := range deal(r, n) {
		c := newCharge(r, kind, fmt.Sprintf("%s-%04d", name, i+1))
		c.at = p.length * time.Duration(i) / time.Duration(n)
		p.charges = append(p.charges, c)
		if c.isScarce() {
			scarce++
		}
	}
	p.stock[scarceSKU] = max(1, scarce/2)
	return p
}

// deal draws n kinds: one of each as far as n goes, the others by their weights.
func deal(r *rand.Rand, n int) []kind {
	hand := slices.Clone(kinds[:min(n, len(kinds))])
	for len(hand) < n {
		point := r.IntN(100)
		i := slices.IndexFunc(kinds, func(k kind) bool { point -= k.weight; return point < 0 })
		hand = append(hand, kinds[i])
	}
	r.Shuffle(len(hand), func(i, j int) { hand[i], hand[j] = hand[j], hand[i] })
	return hand
}

// currencies have the same minor unit in ISO 4217 and at Stripe.
var currencies = []string{"EUR", "USD", "GBP", "JPY"}

func newCharge(r *rand.Rand, kind kind, name string) charge {
	// About as long as a charge takes: some cancellations come before the capture.
	const longestCancel = 100 * time.Millisecond
	c := charge{
		order: "order-" + name, key: "key-" + name,
		amount: 100 + r.Int64N(50_000), currency: currencies[r.IntN(len(currencies))],
		outcomes: kind.outcomes, together: 1 + r.IntN(3), reuse: r.IntN(5) == 0,
	}
	if kind.cancel {
		c.cancel, c.cancelAfter = true, time.Duration(r.Int64N(int64(longestCancel)))
	}
	c.body = c.bodyOf(kind.method, kind.items, c.amount)
	c.planRefunds(r, kind)
	return c
}

func (c charge) bodyOf(method string, items []item, amount int64) []byte {
	return encode(struct {
		Order    string            `json:"order_id"`
		Amount   int64             `json:"amount"`
		Currency string            `json:"currency"`
		Method   string            `json:"payment_method"`
		Items    []item            `json:"items,omitempty"`
		Metadata map[string]string `json:"metadata"`
	}{c.order, amount, c.currency, method, items, map[string]string{"source": "demo"}})
}

// otherBody is a body that the charge's key must refuse.
func (c charge) otherBody() []byte { return c.bodyOf(cardVisa, nil, c.amount+1) }

func (c charge) isScarce() bool { return slices.Contains(c.outcomes, "out_of_stock") }

// refundings are the ways in which a captured charge is refunded or disputed.
var refundings = []func(*charge){
	func(c *charge) { c.refundRest(c.amount, succeeded) },
	func(c *charge) { c.refund(1+c.amount/3, succeeded) },
	func(c *charge) {
		part := 1 + c.amount/3
		c.refund(part, succeeded)
		c.refundRest(c.amount-part, succeeded)
		c.refund(1, tooMuch)
	},
	func(c *charge) { c.refund(c.amount+1, tooMuch) },
	func(c *charge) { // both at once: there is enough for either
		c.rivals = true
		most := 1 + 2*c.amount/3
		c.refund(most, succeeded, tooMuch)
		c.refund(most, succeeded, tooMuch)
	},
	func(c *charge) {
		c.add(refund{amount: 1 + c.amount/2, outcomes: []string{succeeded}, outside: true})
		c.refund(c.amount-c.amount/2, tooMuch)
	},
	func(c *charge) { c.disputed = won },
	func(c *charge) { c.disputed = lost },
}

// planRefunds draws how a charge of a kind is refunded; half of the captured ones are not.
func (c *charge) planRefunds(r *rand.Rand, kind kind) {
	way, one := r.IntN(2*len(refundings)), r.IntN(3) == 0
	switch {
	case kind.method == cardRefundFail:
		c.refundRest(c.amount, failed)
	case kind.cancel:
	case !slices.Contains(c.outcomes, succeeded):
		if one {
			c.refund(1, notCaptured)
		}
	case !c.isScarce() && way < len(refundings):
		refundings[way](c)
	}
}

func (c *charge) refund(amount int64, outcomes ...string) {
	c.add(refund{body: encode(map[string]int64{"amount": amount}), amount: amount, outcomes: outcomes})
}

// refundRest requests all that is left, which should be rest.
func (c *charge) refundRest(rest int64, outcomes ...string) {
	c.add(refund{body: []byte("{}"), amount: rest, outcomes: outcomes})
}

func (c *charge) add(refund refund) {
	refund.key = c.key + "-refund-" + string(rune('a'+len(c.refunds)))
	c.refunds = append(c.refunds, refund)
}

// encode is for values of this package's own types, which always encode.
func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", value, err))
	}
	return text
}
