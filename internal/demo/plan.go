package demo

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Plan is everything that the demo will do, decided beforehand: the same seed,
// number and name give the same plan.
type Plan struct {
	Seed    uint64
	Charges []Charge
	// Stock is the supply of each SKU.
	Stock map[string]int
	// Strikes come in the order of their times.
	Strikes []Strike
	// Length is the time over which the charges are spread.
	Length time.Duration
}

// Charge is one charge to be made, and how.
type Charge struct {
	Order string
	Key   string
	Body  []byte
	// Amount and Currency are those of the body.
	Amount   int64
	Currency string
	// Ends are the endings that are right: "succeeded" or the failure's code.
	Ends []string
	// At is when the first request is sent, counted from the beginning.
	At time.Duration
	// Together is how many of the three requests are sent at once. The others
	// follow when the charge has ended.
	Together int
	// Reuse sends another body with the same key, once.
	Reuse bool
	// Cancel asks, after a moment, for the charge to be canceled.
	Cancel bool
	// Moment is how long after the charge was accepted that is.
	Moment time.Duration
	// Refunds are asked for when the charge has ended, one after another, or all
	// at once if they are Rivals.
	Refunds []Refund
	Rivals  bool
}

const (
	succeeded = "succeeded"
	failed    = "failed"
	canceled  = "canceled"
)

// kind is a sort of charge. The weights are per cent.
type kind struct {
	weight int
	method string
	items  func(*rand.Rand) []item
	ends   []string
	cancel bool
}

type item struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// kinds begins with the plainest, so that a demo of one charge succeeds.
func kinds() []kind {
	ends := func(ends ...string) []string { return ends }
	return []kind{
		{22, cardVisa, oneItem, ends(succeeded), false},
		{8, "pm_card_chargeDeclined", oneItem, ends("card_declined"), false},
		{8, cardVisa, lastItems, ends(succeeded, "out_of_stock"), false},
		{9, cardVisa, oneItem, ends(succeeded, canceled), true},
		{5, cardRefundFail, noItems, ends(succeeded), false},
		{10, cardVisa, noItems, ends(succeeded), false},
		{12, cardVisa, severalItems, ends(succeeded), false},
		{5, "pm_card_chargeDeclinedInsufficientFunds", severalItems, ends("card_declined"), false},
		{5, "pm_card_authenticationRequired", oneItem, ends("authentication_required"), false},
		{6, "pm_card_processing", oneItem, ends(succeeded), false},
		{5, "pm_card_of_nobody", oneItem, ends("provider_refused"), false},
		{5, cardVisa, unknownItem, ends("unknown_sku"), false},
	}
}

// The payment methods that mean something to a plan.
const (
	cardVisa       = "pm_card_visa"
	cardRefundFail = "pm_card_refundFail" // captures; its refund fails
)

// The SKUs: two that never run out and one that does.
const (
	tshirt = "tshirt"
	mug    = "mug"
	poster = "poster"
)

func oneItem(r *rand.Rand) []item      { return []item{{tshirt, 1 + r.IntN(3)}} }
func noItems(*rand.Rand) []item        { return nil }
func lastItems(*rand.Rand) []item      { return []item{{poster, 1}} }
func unknownItem(*rand.Rand) []item    { return []item{{tshirt, 1}, {"unicorn", 1}} }
func severalItems(r *rand.Rand) []item { return []item{{mug, 1 + r.IntN(4)}, {tshirt, 1}} }

// newPlan makes a plan of n charges. The name keeps the orders and keys of one
// run apart from those of another.
func newPlan(seed uint64, n int, name string) Plan {
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a plan must be repeatable, not secret
	plan := Plan{Seed: seed, Stock: map[string]int{tshirt: 100 * n, mug: 100 * n}, Length: length(n)}
	scarce := 0
	for i, kind := range deal(r, n) {
		charge := newCharge(r, kind, fmt.Sprintf("%s-%04d", name, i+1))
		charge.At = plan.Length * time.Duration(i) / time.Duration(n)
		if charge.isScarce() {
			scarce++
		}
		plan.Charges = append(plan.Charges, charge)
	}
	// Half of the scarce charges can have what they want.
	plan.Stock[poster] = max(1, scarce/2)
	plan.Strikes = newStrikes(r, plan.Length)
	return plan
}

// length spreads few charges over the time that the strikes take, and many over
// as long as two cores need for them.
func length(n int) time.Duration {
	const (
		shortest  = 15 * time.Second
		perSecond = 20
	)
	return max(shortest, time.Duration(n)*time.Second/perSecond)
}

// deal draws n kinds: one of each as far as n goes, the others by their weights.
func deal(r *rand.Rand, n int) []kind {
	all := kinds()
	hand := append([]kind(nil), all[:min(n, len(all))]...)
	for len(hand) < n {
		point := r.IntN(100)
		for _, kind := range all {
			if point -= kind.weight; point < 0 {
				hand = append(hand, kind)
				break
			}
		}
	}
	r.Shuffle(len(hand), func(i, j int) { hand[i], hand[j] = hand[j], hand[i] })
	return hand
}

// longestMoment is about as long as a charge needs: so some cancellations come
// first and some captures.
const longestMoment = 100 * time.Millisecond

func newCharge(r *rand.Rand, kind kind, name string) Charge {
	// Each has the same minor unit in ISO 4217 and at Stripe, so what the books of the
	// provider say is compared as it is.
	currencies := []string{"EUR", "USD", "GBP", "JPY"}
	charge := Charge{
		Order:    "order-" + name,
		Key:      "key-" + name,
		Amount:   100 + r.Int64N(50_000),
		Currency: currencies[r.IntN(len(currencies))],
		Ends:     kind.ends,
		Together: 1 + r.IntN(3),
		Reuse:    r.IntN(5) == 0,
	}
	if kind.cancel {
		charge.Cancel, charge.Moment = true, time.Duration(r.Int64N(int64(longestMoment)))
	}
	charge.Body = charge.body(kind.method, kind.items(r), charge.Amount)
	charge.refundSome(r, kind)
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

func (c Charge) mustSucceed() bool { return len(c.Ends) == 1 && c.Ends[0] == succeeded }

func (c Charge) mustFail() bool { return !slices.Contains(c.Ends, succeeded) }

// isScarce says whether the charge wants what not all can have.
func (c Charge) isScarce() bool { return slices.Contains(c.Ends, "out_of_stock") }

// other is a body that the charge's key must refuse.
func (c Charge) other() []byte { return c.body(cardVisa, nil, c.Amount+1) }

// encode is for values of this package's own types, which always encode.
func encode(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", value, err))
	}
	return text
}
