package fulfillment_test

import (
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
)

// message is a message and its state in the inbox.
type message struct {
	id, charge, key string
	state           state
}

type state int

const (
	waiting  state = iota
	orphaned       // claimed by a worker that died
	finished
)

// shelf is one article of the merchant's.
type shelf struct{ Available, Reserved, Sold int64 }

// observe checks that a delivery that was not disturbed has brought what it is about to its end.
func (m *machine) observe(t *rapid.T, p *message, disturbed bool) {
	c := m.load(t, p.charge).Charge
	if r, _ := c.Refund(p.key); !disturbed && (!c.Terminal() || r.Status == domain.RefundStatusPending) {
		t.Fatalf("%s has no outcome after an undisturbed delivery: %+v", p.key, c)
	}
}

// check compares the stream of each charge with the stock, and with the money that the provider
// has moved, after every step.
func (m *machine) check(t *rapid.T) {
	m.count.steps.Add(1)
	shelves := map[string]shelf{}
	for sku, quantity := range supplied {
		shelves[sku] = shelf{Available: quantity}
	}
	seen := m.provider.records(t)
	given := map[string][]int64{}
	for _, r := range seen.Refunds {
		given[r.Reference] = append(given[r.Reference], r.Amount)
	}
	for _, id := range m.charges {
		c := m.load(t, id).Charge
		if c.StepStatus(domain.Inventory) == domain.StepDone {
			s, quantity := shelves[c.Items[0].SKU], c.Items[0].Quantity
			s.Available -= quantity
			if c.Terminal() {
				s.Sold += quantity
			} else {
				s.Reserved += quantity
			}
			shelves[c.Items[0].SKU] = s
		}
		m.checkMoney(t, c, seen, given)
	}
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
	if diff := cmp.Diff(shelves, stored); diff != "" {
		t.Fatalf("the stock by the streams (-) and as it is stored (+):\n%s", diff)
	}
}

// checkMoney: the provider took the money once of a charge that succeeded, at most once of one
// that is open, and never of one that failed, whose intent is closed. It gave each refund back that
// succeeded, once.
func (m *machine) checkMoney(t *rapid.T, c domain.Charge, seen records, given map[string][]int64) {
	captures, open := 0, false // an orphan stays as it is without our confirmation
	for _, i := range seen.Intents {
		open = open || i.Reference == c.ID && i.Status == "requires_payment_method"
	}
	for _, taken := range seen.Captures {
		if taken.Reference == c.ID {
			captures++
		}
	}
	succeeded := c.Terminal() && c.Status != domain.Failed
	if captures > 1 || c.Status == domain.Failed && (captures > 0 || open) || succeeded && captures != 1 {
		t.Fatalf("%s is %s, was taken %d times, and may be: %v", c.ID, c.Status, captures, open)
	}
	for _, r := range c.Refunds {
		want := []int64{r.Amount}
		if r.Status == domain.RefundStatusFailed || r.Status == domain.RefundStatusPending && len(given[r.ID]) == 0 {
			want = nil
		}
		if !slices.Equal(given[r.ID], want) {
			t.Fatalf("refund %s of %d is %s, and the provider gave %v", r.ID, r.Amount, r.Status, given[r.ID])
		}
	}
}
