package demo

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// plan is all that a run does: the charges that flow, and when they are struck. The same seed,
// number and name give the same plan.
type plan struct {
	charges []*charge
	length  time.Duration // over which the charges are spread
	random  *rand.Rand    // of the strikes
}

// request is one request under a key, which is sent three times, and what came of it.
type request struct {
	path, key string
	body      []byte
	makes     string // a charge or a refund, where it makes one
	together  int    // that are sent at once; the others follow the outcome
	wanted    string // the right outcomes
	amount    int64  // of the charge or refund that it makes; 0 for others

	answers []harness.Answer // the definitive ones
	made
}

// charge is a request for a charge, and what follows it.
type charge struct {
	request

	then    string        // of its kind
	at      time.Duration // when it is sent, counted from the start
	cancel  *request      // a moment after the charge was accepted
	refunds []*request    // when the charge has ended
}

// requests are that for the charge, and all that follow it.
func (c *charge) requests() []*request {
	all := append([]*request{&c.request}, c.refunds...)
	if c.cancel != nil {
		all = append(all, c.cancel)
	}
	return all
}

// kind is a sort of charge. The weights are per cent.
type kind struct {
	weight int
	method string
	items  []item
	wanted string // the right outcomes, and one space between two
	parts  []part // that are refunded in turn, or all at once as rivals
	then   string // rivals, outside: the first part is refunded in the provider's dashboard; or the end of a dispute
}

type item struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// part is a refund of so many thirds of a charge, or of what is left.
type part struct {
	thirds int64
	wanted string
}

const (
	chargesPath = "/v1/charges"
	visa        = "pm_card_visa"
	left        = 0 // thirds
	rivals      = "rivals"
	outside     = "outside"
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

var (
	mug    = []item{{"mug", 1}}
	shirts = []item{{"tshirt", 2}}
	both   = []item{{"mug", 4}, {"tshirt", 1}}
)

// kinds begins with the plainest, so that a plan of one charge succeeds.
var kinds = []kind{
	{20, visa, shirts, succeeded, nil, ""},
	{6, "pm_card_chargeDeclined", mug, "card_declined", nil, ""},
	{8, visa, []item{{"poster", 1}}, succeeded + " out_of_stock", nil, ""}, // too few of them are in stock
	{9, visa, shirts, succeeded + " " + canceled, nil, ""},
	{5, "pm_card_refundFail", nil, succeeded, []part{{left, failed}}, ""},
	{4, visa, nil, succeeded, []part{{left, succeeded}}, ""},
	{4, visa, mug, succeeded, []part{{1, succeeded}, {left, succeeded}, {1, tooMuch}}, ""},
	{4, visa, both, succeeded, []part{{2, succeeded + " " + tooMuch}, {2, succeeded + " " + tooMuch}}, rivals},
	{3, visa, mug, succeeded, []part{{2, succeeded}, {2, tooMuch}}, outside},
	{4, visa, mug, succeeded, nil, "won"},
	{4, visa, nil, succeeded, nil, "lost"},
	{6, "pm_card_processing", shirts, succeeded, []part{{1, succeeded}}, ""},
	{4, visa, mug, succeeded, []part{{4, tooMuch}}, ""},
	{5, "pm_card_chargeDeclinedInsufficientFunds", both, "card_declined", []part{{1, notCaptured}}, ""},
	{5, "pm_card_authenticationRequired", mug, "authentication_required", nil, ""},
	{4, "pm_card_of_nobody", mug, "provider_refused", nil, ""},
	{5, visa, []item{{"tshirt", 1}, {"unicorn", 1}}, "unknown_sku", nil, ""},
}

// newPlan makes a plan of n charges: one of each kind as far as n goes, the others by their weights.
// The name separates the orders and keys of one run from those of another.
func newPlan(seed uint64, n int, name string) plan {
	const (
		shortest  = 15 * time.Second // few charges are spread over the time that faults take
		perSecond = 20
	)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a plan must be repeatable, not secret
	hand := slices.Clone(kinds[:min(n, len(kinds))])
	for len(hand) < n {
		point := r.IntN(100)
		i := slices.IndexFunc(kinds, func(k kind) bool { point -= k.weight; return point < 0 })
		hand = append(hand, kinds[i])
	}
	r.Shuffle(len(hand), func(i, j int) { hand[i], hand[j] = hand[j], hand[i] })
	p := plan{length: max(shortest, time.Duration(n)*time.Second/perSecond), random: r}
	for i, kind := range hand {
		c := newCharge(r, kind, fmt.Sprintf("%s-%04d", name, i+1))
		c.at = p.length * time.Duration(i) / time.Duration(n)
		p.charges = append(p.charges, c)
	}
	return p
}

func newCharge(r *rand.Rand, k kind, name string) *charge {
	currencies := []string{"EUR", "USD", "GBP", "JPY"} // with the same minor unit in ISO 4217 and at Stripe
	third := 100 + r.Int64N(15_000)
	c := &charge{then: k.then}
	c.request = request{path: chargesPath, makes: "charge", key: "key-" + name, together: 1 + r.IntN(3), wanted: k.wanted, amount: 3 * third}
	c.body = encode(map[string]any{
		"order_id": "order-" + name, "amount": c.amount, "currency": currencies[int(third)%len(currencies)],
		"payment_method": k.method, "items": k.items, "metadata": map[string]string{"source": "demo"},
	})
	if strings.Contains(k.wanted, canceled) {
		c.cancel = &request{key: c.key + "-cancel", together: 2, wanted: k.wanted + " " + notCaptured}
	}
	rest := c.amount
	for i, p := range k.parts {
		refund := &request{
			makes: "refund", key: fmt.Sprintf("%s-refund-%c", c.key, 'a'+i), together: 2, wanted: p.wanted,
			amount: p.thirds * third, body: encode(map[string]int64{"amount": p.thirds * third}),
		}
		if p.thirds == left {
			refund.amount, refund.body = rest, []byte("{}")
		}
		rest -= refund.amount
		c.refunds = append(c.refunds, refund)
	}
	return c
}

// encode is for values of this package's own types, which always encode.
func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", value, err))
	}
	return text
}
