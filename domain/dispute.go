package domain

import (
	"fmt"
	"slices"
)

// Dispute is a complaint of the customer at the bank about a captured charge, as the provider
// last showed it. While it is open the provider may hold its money back.
type Dispute struct {
	ID     string // the provider's
	Amount int64  // minor units of the charge's currency
	Reason string
	Status DisputeStatus

	// Withdrawn is what the provider took from our balance for it, Reinstated what it gave
	// back, in minor units and without fees.
	Withdrawn, Reinstated int64

	// Versions are those of its events.
	Versions []int
}

// DisputeStatus is the state of a dispute: open, or the provider's word for how it ended.
type DisputeStatus string

// The states of a dispute that decide about money. Every other end moves none.
const (
	DisputeOpen DisputeStatus = "open"
	DisputeLost DisputeStatus = "lost"
)

// Dispute returns the dispute with an id of the provider.
func (c Charge) Dispute(id string) (d Dispute, found bool) {
	if i := slices.IndexFunc(c.Disputes, func(d Dispute) bool { return d.ID == id }); i >= 0 {
		return c.Disputes[i], true
	}
	return Dispute{}, false
}

// changeDispute applies an event of a dispute. Each is a webhook event.
func (c *Charge) changeDispute(id string, change func(*Dispute)) {
	for i := range c.Disputes {
		if d := &c.Disputes[i]; d.ID == id {
			change(d)
			d.Versions = append(slices.Clip(d.Versions), c.Version)
		}
	}
	if c.notifies() {
		c.Unnotified = append(c.Unnotified, c.Version)
	}
}

var disputeEvents = []EventType{
	outcome[ChargeDisputed]("charge.disputed"), outcome[DisputeWithdrawn]("charge.dispute_withdrawn"),
	outcome[DisputeReinstated]("charge.dispute_reinstated"), outcome[DisputeClosed]("charge.dispute_closed"),
}

// ChargeDisputed says that the provider has a dispute about the charge. No money moves yet: an
// inquiry of the bank may never move any.
type ChargeDisputed struct {
	DisputeID string `json:"dispute_id" detail:"dispute_id"`
	Provider  string `json:"provider" detail:"provider"`
	Amount    int64  `json:"amount" detail:"amount"`
	Reason    string `json:"reason,omitempty" detail:"reason"`
}

func (ChargeDisputed) stored() string { return "charge.disputed.v1" }
func (e ChargeDisputed) apply(c *Charge) {
	c.Disputes = append(c.Disputes, Dispute{ID: e.DisputeID, Amount: e.Amount, Reason: e.Reason, Status: DisputeOpen})
	c.changeDispute(e.DisputeID, func(*Dispute) {})
}

func (e ChargeDisputed) allowedIn(c Charge) bool {
	_, known := c.Dispute(e.DisputeID)
	return !known && e.DisputeID != "" && e.Amount >= MinAmount && c.Terminal() && c.StepStatus(Payment) == StepDone
}

// DisputeWithdrawn says that the provider took the disputed money, and its fee, from our balance.
type DisputeWithdrawn struct {
	DisputeID string `json:"dispute_id" detail:"dispute_id"`
	Amount    int64  `json:"amount" detail:"amount"`
	Fee       int64  `json:"fee,omitempty" detail:"fee"`
}

func (DisputeWithdrawn) stored() string { return "charge.dispute_withdrawn.v1" }
func (e DisputeWithdrawn) apply(c *Charge) {
	c.changeDispute(e.DisputeID, func(d *Dispute) { d.Withdrawn = e.Amount })
}

func (e DisputeWithdrawn) allowedIn(c Charge) bool {
	d, known := c.Dispute(e.DisputeID)
	return known && d.Withdrawn == 0 && e.Amount >= MinAmount && e.Fee >= 0
}

func (e DisputeWithdrawn) post(b *chart, c Charge) {
	b.move(b.disputed(c, e.DisputeID), b.providerReceivable(), e.Amount)
	b.move(b.merchantPayable(), b.providerReceivable(), e.Fee)
}

// DisputeReinstated says that the provider gave withdrawn money, and maybe its fee, back.
type DisputeReinstated struct {
	DisputeID string `json:"dispute_id" detail:"dispute_id"`
	Amount    int64  `json:"amount" detail:"amount"`
	Fee       int64  `json:"fee,omitempty" detail:"fee"`
}

func (DisputeReinstated) stored() string { return "charge.dispute_reinstated.v1" }
func (e DisputeReinstated) apply(c *Charge) {
	c.changeDispute(e.DisputeID, func(d *Dispute) { d.Reinstated = e.Amount })
}

func (e DisputeReinstated) allowedIn(c Charge) bool {
	d, _ := c.Dispute(e.DisputeID)
	return d.Reinstated == 0 && e.Amount >= MinAmount && e.Amount <= d.Withdrawn && e.Fee >= 0
}

func (e DisputeReinstated) post(b *chart, c Charge) {
	b.move(b.providerReceivable(), b.disputed(c, e.DisputeID), e.Amount)
	b.move(b.providerReceivable(), b.merchantPayable(), e.Fee)
}

// DisputeClosed says how a dispute ended. Amount is what the merchant loses by it.
type DisputeClosed struct {
	DisputeID string        `json:"dispute_id" detail:"dispute_id"`
	Status    DisputeStatus `json:"status" detail:"status"`
	Amount    int64         `json:"amount,omitempty" detail:"amount"`
}

func (DisputeClosed) stored() string { return "charge.dispute_closed.v1" }
func (e DisputeClosed) apply(c *Charge) {
	c.changeDispute(e.DisputeID, func(d *Dispute) { d.Status = e.Status })
}

func (e DisputeClosed) allowedIn(c Charge) bool {
	d, _ := c.Dispute(e.DisputeID)
	return d.Status == DisputeOpen && e.Status != "" && e.Status != DisputeOpen && e.Amount == d.lostBy(e.Status)
}

func (e DisputeClosed) post(b *chart, _ Charge) { b.move(b.merchantPayable(), b.disputes(), e.Amount) }

// lostBy is what the merchant loses if the dispute ends like this.
func (d Dispute) lostBy(end DisputeStatus) int64 {
	if end != DisputeLost {
		return 0
	}
	return d.Withdrawn - d.Reinstated
}

// disputed is the account that bears the money of a dispute: the merchant's once it is lost.
func (b *chart) disputed(c Charge, id string) string {
	if d, _ := c.Dispute(id); d.Status == DisputeLost {
		return b.merchantPayable()
	}
	return b.disputes()
}

// ObserveDispute records a dispute as the provider shows it: whatever of it is not recorded
// yet, in the order in which it happens.
type ObserveDispute struct {
	ID     string
	Reason string
	Amount Money
	Status DisputeStatus // DisputeOpen, or how it ended

	// In minor units of Amount's currency; 0 as long as it has not happened.
	Withdrawn, Reinstated   int64
	WithdrawnFee, ReturnFee int64
}

func (o ObserveDispute) decide(c Charge) ([]Event, error) {
	if o.ID == "" || o.Amount.Currency != c.Amount.Currency || o.Reinstated > o.Withdrawn || c.StepStatus(Payment) != StepDone {
		return nil, fmt.Errorf("dispute %q of %d %s, %d reinstated of %d: %w",
			o.ID, o.Amount.Amount, o.Amount.Currency, o.Reinstated, o.Withdrawn, ErrMismatch)
	}
	var events []Event
	observe := func(happened bool, e Event) {
		if happened && e.allowedIn(c) {
			events, c = append(events, e), Fold(c, e)
		}
	}
	observe(true, ChargeDisputed{DisputeID: o.ID, Provider: Provider, Amount: o.Amount.Amount, Reason: o.Reason})
	observe(o.Withdrawn > 0, DisputeWithdrawn{DisputeID: o.ID, Amount: o.Withdrawn, Fee: o.WithdrawnFee})
	observe(o.Reinstated > 0, DisputeReinstated{DisputeID: o.ID, Amount: o.Reinstated, Fee: o.ReturnFee})
	d, _ := c.Dispute(o.ID)
	observe(o.Status != DisputeOpen, DisputeClosed{DisputeID: o.ID, Status: o.Status, Amount: d.lostBy(o.Status)})
	return events, nil
}
