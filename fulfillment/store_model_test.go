package fulfillment_test

import (
	"slices"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/ledger"
)

// The plain model: what a merchant, a shop with two shelves and a post office
// would write down. It knows no streams, versions, leases or fences.

// order of the model.
type modelCharge struct {
	id, method string
	amount     int64
	sku        string // none where empty
	quantity   int64

	status   domain.Status // Pending, Succeeded or Failed: refunds are told apart
	failure  domain.FailureCode
	canceled bool // the merchant has asked for it
	holds    bool // of the shelf
	refunds  []*modelRefund
}

type modelRefund struct {
	id     string
	amount int64
	status domain.RefundStatus
}

// shelf is one article of the merchant's.
type shelf struct{ Available, Reserved, Sold int64 }

// use is what a key was used for, and what was answered.
type use struct {
	operation, key, content string
	answer                  string
	expired                 bool
	repeat                  func(t *rapid.T, content string) // asks again
}

// parcel is a message, and how it stands in the inbox.
type parcel struct {
	id, kind, charge string
	payload          []byte
	metadata         map[string]string

	standing   standing
	number     int // in the order of the first deliveries
	deliveries int
}

type standing int

const (
	undelivered standing = iota
	waiting              // received and not done
	orphaned             // in the hands of a holder that died
	lapsed               // whose lease has ended
	finished
)

// left is what may still be given back.
func (c *modelCharge) left() int64 {
	if c.status != domain.Succeeded {
		return 0
	}
	left := c.amount
	for _, r := range c.refunds {
		if r.status != domain.RefundStatusFailed {
			left -= r.amount
		}
	}
	return left
}

func (c *modelCharge) refunded() (sum int64) {
	for _, r := range c.refunds {
		if r.status == domain.RefundStatusSucceeded {
			sum += r.amount
		}
	}
	return sum
}

// outcome is how a charge ends that is carried to its end now. Once the money was
// taken nothing else counts; then the merchant's wish; then the shelf; then the
// card.
func (m *machine) outcome(c *modelCharge) (domain.Status, domain.FailureCode) {
	captures, _ := m.bank.taken(c.id)
	switch {
	case captures > 0:
		return domain.Succeeded, ""
	case c.canceled:
		return domain.Failed, domain.Canceled
	case c.sku != "" && !c.holds && m.shelves[c.sku].Available < c.quantity:
		return domain.Failed, domain.OutOfStock
	case c.method == "pm_card_chargeDeclined":
		return domain.Failed, domain.CardDeclined
	case c.method == "pm_card_nobody":
		return domain.Failed, domain.ProviderRefused
	default:
		return domain.Succeeded, ""
	}
}

// observe compares a charge with the model after a delivery. A delivery that was
// not disturbed brings everything to its end; of a disturbed one nobody knows how
// far it came, but where it came to is known.
func (m *machine) observe(t *rapid.T, c *modelCharge, disturbed bool) {
	s := m.load(t, c.id)
	if c.status == domain.Pending {
		m.observeOutcome(t, c, s, disturbed)
	}
	failure := domain.FailureCode("")
	if s.Charge.Failure != nil {
		failure = s.Charge.Failure.Code
	}
	if ended := c.status != domain.Pending; ended != s.Charge.Terminal() || c.failure != failure || (c.status == domain.Failed) != (s.Charge.Status == domain.Failed) {
		t.Fatalf("%s is %s, %q; by the model %s, %q", c.id, s.Charge.Status, failure, c.status, c.failure)
	}
	for _, r := range c.refunds {
		m.observeRefund(t, c, r, s.Charge, disturbed)
	}
	if got := s.Charge.Refunded(); got != c.refunded() || s.Charge.Left() != c.left() {
		t.Fatalf("%s: %d were given back and %d are left; by the model %d and %d", c.id, got, s.Charge.Left(), c.refunded(), c.left())
	}
}

func (m *machine) observeOutcome(t *rapid.T, c *modelCharge, s ledger.Stream, disturbed bool) {
	shelf := m.shelves[c.sku]
	status, failure := m.outcome(c)
	if !c.holds && c.sku != "" && s.Charge.Step(domain.Inventory) != domain.StepPending && s.Charge.Step(domain.Inventory) != domain.StepFailed {
		c.holds = true
		shelf.Available, shelf.Reserved = shelf.Available-c.quantity, shelf.Reserved+c.quantity
	}
	if !s.Charge.Terminal() {
		if !disturbed {
			t.Fatalf("%s has no outcome after an undisturbed delivery: %+v", c.id, s.Charge)
		}
		return
	}
	c.status, c.failure = status, failure
	switch {
	case !c.holds:
	case status == domain.Succeeded:
		shelf.Reserved, shelf.Sold = shelf.Reserved-c.quantity, shelf.Sold+c.quantity
	default:
		shelf.Reserved, shelf.Available = shelf.Reserved-c.quantity, shelf.Available+c.quantity
	}
	c.holds = false
	m.outcomes++
}

func (m *machine) observeRefund(t *rapid.T, c *modelCharge, r *modelRefund, seen domain.Charge, disturbed bool) {
	stored, found := seen.Refund(r.id)
	if !found || stored.Amount != r.amount {
		t.Fatalf("refund %s of %d is %+v", r.id, r.amount, stored)
	}
	if r.status == domain.RefundStatusPending && (stored.Status != domain.RefundStatusPending || !disturbed) {
		r.status = domain.RefundStatusSucceeded
		if c.method == "pm_card_refundFail" {
			r.status = domain.RefundStatusFailed
		}
		m.outcomes++
	}
	if stored.Status != r.status {
		t.Fatalf("refund %s is %s, by the model %s", r.id, stored.Status, r.status)
	}
}

// check compares what is outside a charge after every step: the shelves, and the
// money that the bank has moved.
func (m *machine) check(t *rapid.T) {
	m.steps++
	if diff := cmp.Diff(m.shelves, m.stored(t)); diff != "" {
		t.Fatalf("the shelves by the model (-) and as they are stored (+):\n%s", diff)
	}
	for _, c := range m.charges {
		captures, open := m.bank.taken(c.id)
		switch {
		case captures > 1:
			t.Fatalf("%s was taken %d times", c.id, captures)
		case c.status == domain.Failed && (captures > 0 || open), c.status == domain.Succeeded && captures != 1:
			t.Fatalf("%s is %s, was taken %d times, and may be: %v", c.id, c.status, captures, open)
		}
		for _, r := range c.refunds {
			given := m.bank.given(r.id)
			want := []int64{r.amount}
			if r.status == domain.RefundStatusFailed || r.status == domain.RefundStatusPending && len(given) == 0 {
				want = nil
			}
			if !slices.Equal(given, want) {
				t.Fatalf("refund %s of %d is %s, and the bank gave %v", r.id, r.amount, r.status, given)
			}
		}
	}
}

// books are the balances of the merchant's accounts, by the model.
func (m *machine) books() map[string]int64 {
	books := map[string]int64{}
	for _, c := range m.charges {
		switch c.status {
		case domain.Succeeded:
			fee := min(modelFee, c.amount)
			books["psp_receivable:stripe:EUR"] += c.amount - c.refunded()
			books["merchant_payable:"+m.merchant+":EUR"] -= c.amount - fee - c.refunded()
			books["fee_revenue:payonce:EUR"] -= fee
		case domain.Pending:
			books["customer_receivable:"+m.merchant+":EUR"] += c.amount
			books["merchant_pending:"+m.merchant+":EUR"] -= c.amount
		default:
		}
	}
	for account, balance := range books {
		if balance == 0 {
			delete(books, account)
		}
	}
	return books
}
