package fulfillment_test

import (
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
)

// The model is what a merchant with two shelves would write down. It knows no streams,
// versions, leases or fences.

type modelCharge struct {
	id, method string
	amount     int64
	sku        string // none where empty
	quantity   int64

	status   domain.Status // Pending, Succeeded or Failed
	failure  domain.FailureCode
	canceled bool // the merchant has requested it
	holds    bool // its quantity of the stock, also once that is sold
	refunds  []*modelRefund
}

type modelRefund struct {
	id     string
	amount int64
	status domain.RefundStatus
}

// message is a message and its state in the inbox.
type message struct {
	id, charge string
	state      state
}

type state int

const (
	waiting  state = iota
	orphaned       // claimed by a worker that died
	finished
)

// left is what may still be refunded.
func (c *modelCharge) left() int64 {
	if c.status != domain.Succeeded {
		return 0
	}
	return c.amount - c.sum(domain.RefundStatusSucceeded, domain.RefundStatusPending)
}

func (c *modelCharge) sum(of ...domain.RefundStatus) (sum int64) {
	for _, r := range c.refunds {
		if slices.Contains(of, r.status) {
			sum += r.amount
		}
	}
	return sum
}

// shelf is one article of the merchant's.
type shelf struct{ Available, Reserved, Sold int64 }

func (m *machine) shelves() map[string]shelf {
	shelves := map[string]shelf{}
	for sku, quantity := range supplied {
		s := shelf{Available: quantity}
		for _, c := range m.charges {
			switch {
			case c.sku != sku || !c.holds:
				continue
			case c.status == domain.Succeeded:
				s.Sold += c.quantity
			default:
				s.Reserved += c.quantity
			}
			s.Available -= c.quantity
		}
		shelves[sku] = s
	}
	return shelves
}

// outcome is how a charge ends that is processed to its end now. Once the money was taken
// nothing else counts; then a cancellation; then the stock; then the card.
func (m *machine) outcome(t *rapid.T, c *modelCharge) (domain.Status, domain.FailureCode) {
	captures, _ := m.captures(t, c)
	switch {
	case captures > 0:
		return domain.Succeeded, ""
	case c.canceled:
		return domain.Failed, domain.Canceled
	case c.sku != "" && !c.holds && m.shelves()[c.sku].Available < c.quantity:
		return domain.Failed, domain.OutOfStock
	case c.method == "pm_card_chargeDeclined":
		return domain.Failed, domain.CardDeclined
	case c.method == "pm_card_nobody":
		return domain.Failed, domain.ProviderRefused
	default:
		return domain.Succeeded, ""
	}
}

// captures is how often the provider took the money of a charge, and whether it still may:
// an orphan stays as it is without our confirmation.
func (m *machine) captures(t *rapid.T, c *modelCharge) (n int, open bool) {
	seen := m.provider.records(t)
	for _, i := range seen.Intents {
		open = open || i.Reference == c.id && i.Status == "requires_payment_method"
	}
	for _, taken := range seen.Captures {
		if taken.Reference == c.id {
			n++
		}
	}
	return n, open
}

// observe compares a charge with the model after a delivery. One that was not disturbed
// brings everything to its end; how far a disturbed one came is unknown, but not where to.
func (m *machine) observe(t *rapid.T, c *modelCharge, disturbed bool) {
	stored := m.load(t, c.id).Charge
	if c.status == domain.Pending {
		status, failure := m.outcome(t, c)
		if stored.Terminal() {
			c.status, c.failure = status, failure
		} else if !disturbed {
			t.Fatalf("%s has no outcome after an undisturbed delivery: %+v", c.id, stored)
		}
		c.holds = c.sku != "" && stored.Step(domain.Inventory) == domain.StepDone
	}
	failure := domain.FailureCode("")
	if stored.Failure != nil {
		failure = stored.Failure.Code
	}
	if c.failure != failure || (c.status == domain.Pending) == stored.Terminal() || (c.status == domain.Failed) != (stored.Status == domain.Failed) {
		t.Fatalf("%s is %s, %q; by the model %s, %q", c.id, stored.Status, failure, c.status, c.failure)
	}
	for _, r := range c.refunds {
		found, _ := stored.Refund(r.id)
		if r.status == domain.RefundStatusPending && (found.Status != domain.RefundStatusPending || !disturbed) {
			r.status = domain.RefundStatusSucceeded
			if c.method == "pm_card_refundFail" {
				r.status = domain.RefundStatusFailed
			}
		}
		if found.Status != r.status || found.Amount != r.amount {
			t.Fatalf("refund %s of %d is %+v, by the model %s", r.id, r.amount, found, r.status)
		}
	}
	if refunded := c.sum(domain.RefundStatusSucceeded); stored.Refunded() != refunded || stored.Left() != c.left() {
		t.Fatalf("%s: %d were refunded and %d are left; by the model %d and %d", c.id, stored.Refunded(), stored.Left(), refunded, c.left())
	}
}

// check compares the stock, and the money that the provider has moved, after every step.
func (m *machine) check(t *rapid.T) {
	m.count.steps.Add(1)
	rows, err := m.db.Query(m.t.Context(), `select sku, available, reserved, sold from stock where merchant_id = $1`, m.merchant)
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]shelf{}
	var sku string
	var on shelf
	if _, err := pgx.ForEachRow(rows, []any{&sku, &on.Available, &on.Reserved, &on.Sold}, func() error { stored[sku] = on; return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.shelves(), stored); diff != "" {
		t.Fatalf("the stock by the model (-) and as it is stored (+):\n%s", diff)
	}
	given := map[string][]int64{}
	for _, r := range m.provider.records(t).Refunds {
		given[r.Reference] = append(given[r.Reference], r.Amount)
	}
	for _, c := range m.charges {
		captures, open := m.captures(t, c)
		if captures > 1 || c.status == domain.Failed && (captures > 0 || open) || c.status == domain.Succeeded && captures != 1 {
			t.Fatalf("%s is %s, was taken %d times, and may be: %v", c.id, c.status, captures, open)
		}
		for _, r := range c.refunds {
			want := []int64{r.amount}
			if r.status == domain.RefundStatusFailed || r.status == domain.RefundStatusPending && len(given[r.id]) == 0 {
				want = nil
			}
			if !slices.Equal(given[r.id], want) {
				t.Fatalf("refund %s of %d is %s, and the provider gave %v", r.id, r.amount, r.status, given[r.id])
			}
		}
	}
}
