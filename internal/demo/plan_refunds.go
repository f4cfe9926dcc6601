package demo

import "math/rand/v2"

// Refund is one refund to be asked for, and what is right to come of it.
type Refund struct {
	Key  string
	Body []byte
	// Amount is what goes back if it succeeds, in minor units.
	Amount int64
	// Ends are the endings that are right: the refund's status, or the type of
	// the problem that refuses it.
	Ends []string
}

// The problems that refuse a refund.
const (
	tooMuch     = "/problems/refund-exceeds-captured"
	notCaptured = "/problems/conflict"
)

// refundings are the ways in which a captured charge is refunded. Half of the
// charges are not.
func refundings() []func(*Charge) {
	return []func(*Charge){
		func(c *Charge) { c.refundRest(c.Amount, succeeded) },
		func(c *Charge) { c.refund(1+c.Amount/3, succeeded) },
		func(c *Charge) {
			part := 1 + c.Amount/3
			c.refund(part, succeeded)
			c.refundRest(c.Amount-part, succeeded)
			c.refund(1, tooMuch)
		},
		func(c *Charge) { c.refund(c.Amount+1, tooMuch) },
		func(c *Charge) { // both at once: there is enough for either
			c.Rivals = true
			most := 1 + 2*c.Amount/3
			c.refund(most, succeeded, tooMuch)
			c.refund(most, succeeded, tooMuch)
		},
	}
}

// refundSome draws how a charge of a kind is refunded.
func (c *Charge) refundSome(r *rand.Rand, kind kind) {
	ways := refundings()
	way, one := r.IntN(2*len(ways)), r.IntN(3) == 0
	switch {
	case kind.method == cardRefundFail:
		c.refundRest(c.Amount, failed)
	case kind.cancel:
	case c.mustSucceed() && way < len(ways):
		ways[way](c)
	case c.mustFail() && one:
		c.refund(1, notCaptured)
	}
}

func (c *Charge) refund(amount int64, ends ...string) {
	c.add(Refund{Body: encode(map[string]int64{"amount": amount}), Amount: amount, Ends: ends})
}

// refundRest asks for all that is left, which should be rest.
func (c *Charge) refundRest(rest int64, ends ...string) {
	c.add(Refund{Body: encode(map[string]int64{}), Amount: rest, Ends: ends})
}

func (c *Charge) add(refund Refund) {
	refund.Key = c.Key + "-refund-" + string(rune('a'+len(c.Refunds)))
	c.Refunds = append(c.Refunds, refund)
}

// plannedRefunds is how many refunds will be asked for, whatever the charges
// that may end in two ways come to.
func plannedRefunds(seen evidence) int {
	n := 0
	for _, charge := range seen.plan.Charges {
		n += len(charge.Refunds)
	}
	return n
}
