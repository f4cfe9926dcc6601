package domain

import (
	"fmt"
	"math/big"
	"slices"
)

// Dispute is a complaint of the customer at the bank about a captured charge, as the provider last showed it. Its
// status says nothing about money: its movements do, and both may change after it closed.
type Dispute struct {
	ID     string // the provider's
	Amount int64  // minor units of the charge's currency
	Reason string
	Status DisputeStatus

	// Withdrawn and Reinstated are the sums of what the provider took from our balance for the
	// dispute and returned, in minor units of the charge's currency and without fees.
	Withdrawn, Reinstated int64

	Transactions []string   // the provider's ids of the movements, in the order in which they were seen
	Settled      Settlement // of the movements of a balance that is kept in another currency
}

// DisputeStatus is the state of a dispute: open, or the provider's word for how it ended.
type DisputeStatus string

// DisputeOpen is the state of a dispute that has not ended, or goes on.
const DisputeOpen DisputeStatus = "open"

// Settlement converts movements of another currency to that of the charge: the first withdrawal is
// the amount of the dispute, and every movement has its part of that. The parts are rounded so that
// they always sum to the rounded part of the sum: half a unit goes to the even neighbour.
type Settlement struct {
	Currency Currency // empty before the first withdrawal
	First    int64    // the first withdrawal, in minor units of Currency
	Amount   int64    // the dispute's at the first withdrawal, in minor units of the charge's currency
	Sum      int64    // of the movements, below zero where the provider took more than it returned
}

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
		}
	}
	c.oweWebhook()
}

var disputeEvents = []EventType{
	{Name: "charge.dispute_opened.v1", Webhook: "charge.dispute_opened", Zero: DisputeOpened{}},
	{Name: "charge.dispute_withdrawn.v2", Webhook: "charge.dispute_withdrawn", Zero: DisputeWithdrawn{}},
	{Name: "charge.dispute_reinstated.v2", Webhook: "charge.dispute_reinstated", Zero: DisputeReinstated{}},
	{Name: "charge.dispute_updated.v1", Webhook: "charge.dispute_updated", Zero: DisputeUpdated{}},
	{Name: "charge.dispute_closed.v2", Webhook: "charge.dispute_closed", Zero: DisputeClosed{}},
}

// DisputeOpened says that the provider has a dispute about the charge. No money moves yet: an
// inquiry of the bank may never move any.
type DisputeOpened struct {
	DisputeID string `json:"dispute_id" detail:"dispute_id"`
	Provider  string `json:"provider" detail:"provider"`
	Amount    int64  `json:"amount" detail:"amount"`
	Reason    string `json:"reason,omitempty" detail:"reason"`
}

func (e DisputeOpened) apply(c *Charge) {
	c.Disputes = append(c.Disputes, Dispute{ID: e.DisputeID, Amount: e.Amount, Reason: e.Reason, Status: DisputeOpen})
	c.oweWebhook()
}

func (e DisputeOpened) allowedIn(c Charge) bool {
	_, known := c.Dispute(e.DisputeID)
	return !known && e.DisputeID != "" && e.Amount >= MinAmount && c.captured()
}

// DisputeMoved is what is stored of a movement on our balance at the provider.
type DisputeMoved struct {
	DisputeID   string `json:"dispute_id" detail:"dispute_id"`
	Transaction string `json:"transaction" detail:"transaction"` // the provider's id of the movement, which is recorded once

	// Amount is in minor units of the charge's currency, zero or more. Fee has the sign of the
	// amount: below zero it moved the other way.
	Amount int64 `json:"amount" detail:"amount"`
	Fee    int64 `json:"fee,omitempty" detail:"fee"`

	// SettledAmount is what moved on a balance in another currency, in minor units of
	// SettledCurrency. Such a movement says no fee.
	SettledAmount   int64    `json:"settled_amount,omitempty" detail:"settled_amount"`
	SettledCurrency Currency `json:"settled_currency,omitempty" detail:"settled_currency"`
}

// moved returns the movement with signs, below zero for a withdrawal, of a charge in a currency.
func (e DisputeMoved) moved(sign int64, of Currency) DisputeMovement {
	m := DisputeMovement{Transaction: e.Transaction, Amount: sign * e.Amount, Fee: -sign * e.Fee, Currency: of}
	if e.SettledCurrency != "" {
		m.Amount, m.Currency = sign*e.SettledAmount, e.SettledCurrency
	}
	return m
}

func (e DisputeMoved) allowedAs(sign int64, c Charge) bool {
	d, known := c.Dispute(e.DisputeID)
	m := e.moved(sign, c.Currency)
	want, err := d.record(m, c.Currency)
	return known && e.Transaction != "" && !slices.Contains(d.Transactions, e.Transaction) &&
		(m.Amount != 0 || m.Fee != 0) && m.withdraws() == (sign < 0) && err == nil && want == e
}

// maxMovement is above every movement of a balance, in whichever currency.
const maxMovement = 1_000_000_000_000_000

// record returns what is stored of a movement, as the next one of the dispute. The error is ErrMismatch, wrapped.
func (d Dispute) record(m DisputeMovement, of Currency) (DisputeMoved, error) {
	e := DisputeMoved{DisputeID: d.ID, Transaction: m.Transaction, Amount: m.Amount, Fee: m.Fee}
	possible := max(m.Amount, m.Fee) <= maxMovement && min(m.Amount, m.Fee) >= -maxMovement
	if !m.withdraws() {
		e.Fee = -m.Fee
	}
	if possible && m.Currency != of {
		_, e.Amount, possible = d.Settled.with(m, d.Amount)
		e.Fee, e.SettledAmount, e.SettledCurrency = 0, max(m.Amount, -m.Amount), m.Currency
	}
	if !possible {
		return e, fmt.Errorf("movement %s of dispute %s is of %d %s, fee %d, after a first withdrawal of %d %s: %w",
			m.Transaction, d.ID, m.Amount, m.Currency, m.Fee, d.Settled.First, d.Settled.Currency, ErrMismatch)
	}
	e.Amount = max(e.Amount, -e.Amount)
	return e, nil
}

// with returns the settlement with one more movement of a dispute of an amount, and the part of the
// movement, if it has one.
func (s Settlement) with(m DisputeMovement, amount int64) (next Settlement, part int64, possible bool) {
	switch {
	case s.Currency == "" && m.Currency != "" && m.Amount < 0:
		s = Settlement{Currency: m.Currency, First: -m.Amount, Amount: amount}
	case s.Currency == "" || s.Currency != m.Currency:
		return s, 0, false
	}
	before := s.parts()
	s.Sum += m.Amount
	moved := before.Sub(s.parts(), before)
	return s, moved.Int64(), moved.CmpAbs(big.NewInt(MaxAmount)) <= 0
}

// parts is the sum of the parts of all movements, of which the first withdrawal is one.
func (s Settlement) parts() *big.Int {
	sum, first := big.NewInt(s.Sum), big.NewInt(s.First)
	whole, rest := sum.Mul(sum, big.NewInt(s.Amount)).DivMod(sum, first, new(big.Int))
	if half := rest.Lsh(rest, 1).Cmp(first); half > 0 || half == 0 && whole.Bit(0) == 1 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole
}

// apply adds a movement that is allowed.
func (e DisputeMoved) apply(sign int64, c *Charge) {
	c.changeDispute(e.DisputeID, func(d *Dispute) {
		d.Transactions = append(slices.Clip(d.Transactions), e.Transaction)
		if e.SettledCurrency != "" {
			d.Settled, _, _ = d.Settled.with(e.moved(sign, c.Currency), d.Amount)
		}
		if sign < 0 {
			d.Withdrawn += e.Amount
		} else {
			d.Reinstated += e.Amount
		}
	})
}

// DisputeWithdrawn says that the provider took money for a dispute, or its fee, from our balance.
// The merchant bears both at once.
type DisputeWithdrawn struct{ DisputeMoved }

func (e DisputeWithdrawn) apply(c *Charge)         { e.DisputeMoved.apply(-1, c) }
func (e DisputeWithdrawn) allowedIn(c Charge) bool { return e.allowedAs(-1, c) }

// DisputeReinstated says that the provider gave money, or a fee, back.
type DisputeReinstated struct{ DisputeMoved }

func (e DisputeReinstated) apply(c *Charge)         { e.DisputeMoved.apply(1, c) }
func (e DisputeReinstated) allowedIn(c Charge) bool { return e.allowedAs(1, c) }

// DisputeUpdated says that a dispute is otherwise than it was, but for its money and its end: it has
// another amount or reason, or it is open again after an end.
type DisputeUpdated struct {
	DisputeID string        `json:"dispute_id" detail:"dispute_id"`
	Amount    int64         `json:"amount" detail:"amount"`
	Reason    string        `json:"reason,omitempty" detail:"reason"`
	Status    DisputeStatus `json:"status" detail:"status"`
}

func (e DisputeUpdated) apply(c *Charge) {
	c.changeDispute(e.DisputeID, func(d *Dispute) { d.Amount, d.Reason, d.Status = e.Amount, e.Reason, e.Status })
}

func (e DisputeUpdated) allowedIn(c Charge) bool {
	d, known := c.Dispute(e.DisputeID)
	return known && e.Amount >= MinAmount && (e.Status == d.Status || e.Status == DisputeOpen) &&
		(e.Amount != d.Amount || e.Reason != d.Reason || e.Status != d.Status)
}

// DisputeClosed says how a dispute ended. A dispute that goes on may end again, in another way.
type DisputeClosed struct {
	DisputeID string        `json:"dispute_id" detail:"dispute_id"`
	Status    DisputeStatus `json:"status" detail:"status"`
}

func (e DisputeClosed) apply(c *Charge) {
	c.changeDispute(e.DisputeID, func(d *Dispute) { d.Status = e.Status })
}

func (e DisputeClosed) allowedIn(c Charge) bool {
	d, known := c.Dispute(e.DisputeID)
	return known && e.Status != "" && e.Status != DisputeOpen && e.Status != d.Status
}

// ObservedDispute is a dispute as the provider shows it.
type ObservedDispute struct {
	ID     string
	Reason string
	Amount Money
	Status DisputeStatus // DisputeOpen, or how it ended
	Moved  []DisputeMovement
}

// DisputeMovement is a balance transaction of the provider: below zero where the provider took
// money, in minor units of Currency. A fee that the provider took is above zero.
type DisputeMovement struct {
	Transaction string
	Amount, Fee int64
	Currency    Currency
}

// withdraws reports whether the provider took money: an amount or, where none moved, a fee.
func (m DisputeMovement) withdraws() bool { return m.Amount < 0 || m.Amount == 0 && m.Fee > 0 }

// ObserveDispute returns the events of whatever is not recorded yet of a dispute of a captured charge. Beside them the
// error is ErrMismatch, wrapped, if the dispute or one of its movements cannot be the charge's.
func (c Charge) ObserveDispute(o ObservedDispute) (events []Event, err error) {
	if o.ID == "" || o.Amount.Currency != c.Currency {
		return nil, fmt.Errorf("dispute %q of %d %s: %w", o.ID, o.Amount.Amount, o.Amount.Currency, ErrMismatch)
	}
	observe := func(e Event) {
		if e.allowedIn(c) {
			events, c = append(events, e), Fold(c, e)
		}
	}
	observe(DisputeOpened{DisputeID: o.ID, Provider: Provider, Amount: o.Amount.Amount, Reason: o.Reason})
	for _, m := range o.firstWithdrawalFirst() {
		d, _ := c.Dispute(o.ID)
		if slices.Contains(d.Transactions, m.Transaction) {
			continue
		}
		switch moved, wrong := d.record(m, c.Currency); {
		case wrong != nil:
			err = wrong
		case m.withdraws():
			observe(DisputeWithdrawn{moved})
		default:
			observe(DisputeReinstated{moved})
		}
	}
	d, _ := c.Dispute(o.ID)
	if o.Status == DisputeOpen {
		d.Status = DisputeOpen
	}
	observe(DisputeUpdated{DisputeID: o.ID, Amount: o.Amount.Amount, Reason: o.Reason, Status: d.Status})
	observe(DisputeClosed{DisputeID: o.ID, Status: o.Status})
	return events, err
}

// firstWithdrawalFirst returns the movements with the first withdrawal in front: those of one second
// have no order at the provider, and in another currency the others are parts of it.
func (o ObservedDispute) firstWithdrawalFirst() []DisputeMovement {
	i := slices.IndexFunc(o.Moved, func(m DisputeMovement) bool { return m.Amount < 0 })
	if i < 0 {
		return o.Moved
	}
	return slices.Concat(o.Moved[i:i+1], o.Moved[:i], o.Moved[i+1:])
}
