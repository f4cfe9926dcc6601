// Package traffic plans charges, refunds and cancellations from a seed, sends them
// by HTTP as a merchant does, and records the answers. It also reads the records of
// the sandbox. It sees the service from outside and imports none of its packages, so
// it cannot share a mistake with them.
//
// A request without a definitive answer is retried under the same key. Each request
// is sent three times: some at once, the others after the charge has ended.
package traffic

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Plan is all traffic of a run. The same seed, number and name give the same plan.
type Plan struct {
	Charges []Charge
	// Stock is the supply of each SKU; nil if others have supplied it.
	Stock map[string]int
	// Length is the time over which the charges are spread.
	Length time.Duration
}

// Charge is one charge to be requested, and how.
type Charge struct {
	Order string
	Key   string
	Body  []byte
	// Amount and Currency are those of the body.
	Amount   int64
	Currency string
	// Outcomes are the right ones: "succeeded" or the code of the failure.
	Outcomes []string
	// At is when the first request is sent, counted from the start.
	At time.Duration
	// Together is how many of the three requests are sent at once. The others
	// follow when the charge has ended.
	Together int
	// Reuse sends another body with the same key, once.
	Reuse bool
	// Cancel requests a cancellation, CancelAfter the charge was accepted.
	Cancel      bool
	CancelAfter time.Duration
	// Refunds are requested when the charge has ended: in turn, or all at once if
	// they are Rivals.
	Refunds []Refund
	Rivals  bool
	// Disputed is how a dispute of the charge ends at the provider, "" if there is none.
	Disputed string
}

// Refund is one refund to be requested, and its right outcomes.
type Refund struct {
	Key  string
	Body []byte
	// Amount is what is returned if it succeeds, in minor units.
	Amount int64
	// Outcomes are the refund's status, or the type of the problem that refuses it.
	Outcomes []string
	// Outside refunds in the provider's dashboard, without a request.
	Outside bool
}

// The outcomes of charges and refunds.
const (
	Succeeded = "succeeded"
	Failed    = "failed"
	Canceled  = "canceled"

	DisputeWon  = "won"
	DisputeLost = "lost"

	// The problems that refuse a refund.
	TooMuch     = "/problems/refund-exceeds-captured"
	NotCaptured = "/problems/conflict"
)

// ScarceSKU is wanted by more charges than can have it.
const ScarceSKU = "poster"

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
	items    func(*rand.Rand) []item
	outcomes []string
	cancel   bool
}

// kinds begins with the plainest, so that a plan of one charge succeeds.
var kinds = []kind{
	{22, cardVisa, oneItem, []string{Succeeded}, false},
	{8, "pm_card_chargeDeclined", oneItem, []string{"card_declined"}, false},
	{8, cardVisa, scarceItem, []string{Succeeded, "out_of_stock"}, false},
	{9, cardVisa, oneItem, []string{Succeeded, Canceled}, true},
	{5, cardRefundFail, noItems, []string{Succeeded}, false},
	{10, cardVisa, noItems, []string{Succeeded}, false},
	{12, cardVisa, severalItems, []string{Succeeded}, false},
	{5, "pm_card_chargeDeclinedInsufficientFunds", severalItems, []string{"card_declined"}, false},
	{5, "pm_card_authenticationRequired", oneItem, []string{"authentication_required"}, false},
	{6, "pm_card_processing", oneItem, []string{Succeeded}, false},
	{5, "pm_card_of_nobody", oneItem, []string{"provider_refused"}, false},
	{5, cardVisa, unknownItem, []string{"unknown_sku"}, false},
}

func oneItem(r *rand.Rand) []item      { return []item{{"tshirt", 1 + r.IntN(3)}} }
func noItems(*rand.Rand) []item        { return nil }
func scarceItem(*rand.Rand) []item     { return []item{{ScarceSKU, 1}} }
func unknownItem(*rand.Rand) []item    { return []item{{"tshirt", 1}, {"unicorn", 1}} }
func severalItems(r *rand.Rand) []item { return []item{{"mug", 1 + r.IntN(4)}, {"tshirt", 1}} }

// NewPlan makes a plan of n charges. The name separates the orders and keys of one
// run from those of another.
func NewPlan(seed uint64, n int, name string) Plan {
	const (
		shortest  = 15 * time.Second // few charges are spread over the time that faults take
		perSecond = 20
	)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a plan must be repeatable, not secret
	plan := Plan{
		Stock:  map[string]int{"tshirt": 100 * n, "mug": 100 * n},
		Length: max(shortest, time.Duration(n)*time.Second/perSecond),
	}
	for i, kind := range deal(r, n) {
		charge := newCharge(r, kind, fmt.Sprintf("%s-%04d", name, i+1))
		charge.At = plan.Length * time.Duration(i) / time.Duration(n)
		plan.Charges = append(plan.Charges, charge)
	}
	// Half of the scarce charges can have what they want.
	plan.Stock[ScarceSKU] = max(1, plan.Count(Charge.IsScarce)/2)
	return plan
}

// Count is how many charges of the plan are of a sort.
func (p Plan) Count(is func(Charge) bool) (n int) {
	for _, charge := range p.Charges {
		if is(charge) {
			n++
		}
	}
	return n
}

// Refunds is how many refunds are requested.
func (p Plan) Refunds() (n int) {
	for _, charge := range p.Charges {
		n += len(charge.Refunds)
	}
	return n
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

// currencies have the same minor unit in ISO 4217 and at Stripe, so amounts are
// compared with the provider's records as they are.
var currencies = []string{"EUR", "USD", "GBP", "JPY"}

func newCharge(r *rand.Rand, kind kind, name string) Charge {
	// About as long as a charge takes: some cancellations come before the capture.
	const longestCancel = 100 * time.Millisecond
	charge := Charge{
		Order: "order-" + name, Key: "key-" + name,
		Amount: 100 + r.Int64N(50_000), Currency: currencies[r.IntN(len(currencies))],
		Outcomes: kind.outcomes, Together: 1 + r.IntN(3), Reuse: r.IntN(5) == 0,
	}
	if kind.cancel {
		charge.Cancel, charge.CancelAfter = true, time.Duration(r.Int64N(int64(longestCancel)))
	}
	charge.Body = charge.body(kind.method, kind.items(r), charge.Amount)
	charge.planRefunds(r, kind)
	return charge
}

func (c Charge) body(method string, items []item, amount int64) []byte {
	return encode(struct {
		Order    string            `json:"order_id"`
		Amount   int64             `json:"amount"`
		Currency string            `json:"currency"`
		Method   string            `json:"payment_method"`
		Items    []item            `json:"items,omitempty"`
		Metadata map[string]string `json:"metadata"`
	}{c.Order, amount, c.Currency, method, items, map[string]string{"source": "demo"}})
}

// otherBody is a body that the charge's key must refuse.
func (c Charge) otherBody() []byte { return c.body(cardVisa, nil, c.Amount+1) }

// MustSucceed reports whether success is the only right outcome.
func (c Charge) MustSucceed() bool { return len(c.Outcomes) == 1 && c.Outcomes[0] == Succeeded }

// MustFail reports whether success is no right outcome.
func (c Charge) MustFail() bool { return !slices.Contains(c.Outcomes, Succeeded) }

// IsScarce reports whether the charge wants the scarce SKU.
func (c Charge) IsScarce() bool { return slices.Contains(c.Outcomes, "out_of_stock") }

// refundings are the ways in which a captured charge is refunded.
var refundings = []func(*Charge){
	func(c *Charge) { c.refundRest(c.Amount, Succeeded) },
	func(c *Charge) { c.refund(1+c.Amount/3, Succeeded) },
	func(c *Charge) {
		part := 1 + c.Amount/3
		c.refund(part, Succeeded)
		c.refundRest(c.Amount-part, Succeeded)
		c.refund(1, TooMuch)
	},
	func(c *Charge) { c.refund(c.Amount+1, TooMuch) },
	func(c *Charge) { // both at once: there is enough for either
		c.Rivals = true
		most := 1 + 2*c.Amount/3
		c.refund(most, Succeeded, TooMuch)
		c.refund(most, Succeeded, TooMuch)
	},
	func(c *Charge) {
		c.add(Refund{Amount: 1 + c.Amount/2, Outcomes: []string{Succeeded}, Outside: true})
		c.refund(c.Amount-c.Amount/2, TooMuch)
	},
	func(c *Charge) { c.Disputed = DisputeWon },
	func(c *Charge) { c.Disputed = DisputeLost },
}

// planRefunds draws how a charge of a kind is refunded; half of the captured ones
// are not.
func (c *Charge) planRefunds(r *rand.Rand, kind kind) {
	way, one := r.IntN(2*len(refundings)), r.IntN(3) == 0
	switch {
	case kind.method == cardRefundFail:
		c.refundRest(c.Amount, Failed)
	case kind.cancel:
	case c.MustSucceed() && way < len(refundings):
		refundings[way](c)
	case c.MustFail() && one:
		c.refund(1, NotCaptured)
	}
}

func (c *Charge) refund(amount int64, outcomes ...string) {
	c.add(Refund{Body: encode(map[string]int64{"amount": amount}), Amount: amount, Outcomes: outcomes})
}

// refundRest requests all that is left, which should be rest.
func (c *Charge) refundRest(rest int64, outcomes ...string) {
	c.add(Refund{Body: []byte("{}"), Amount: rest, Outcomes: outcomes})
}

func (c *Charge) add(refund Refund) {
	refund.Key = c.Key + "-refund-" + string(rune('a'+len(c.Refunds)))
	c.Refunds = append(c.Refunds, refund)
}

// encode is for values of this package's own types, which always encode.
func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", value, err))
	}
	return text
}
