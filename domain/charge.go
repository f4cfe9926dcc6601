package domain

import "slices"

// Status is what a charge has come to, as merchants see it.
type Status string

// The states of a charge.
const (
	Pending           Status = "pending"
	Succeeded         Status = "succeeded" // captured
	Failed            Status = "failed"
	PartiallyRefunded Status = "partially_refunded"
	Refunded          Status = "refunded"
)

// StepStatus is how far one step has come.
type StepStatus string

// The states of a step.
const (
	StepPending     StepStatus = "pending"
	StepDone        StepStatus = "done"
	StepFailed      StepStatus = "failed"
	StepSkipped     StepStatus = "skipped"
	StepCompensated StepStatus = "compensated"
)

// Charge is the fold of a stream: everything that a decision may look at.
// The zero Charge is a stream without events.
type Charge struct {
	ID            string
	MerchantID    string
	OrderID       string
	Amount        Money
	Fee           int64 // minor units of Amount.Currency
	PaymentMethod string
	Items         []Item
	Description   string
	Metadata      map[string]string

	Status       Status
	Inventory    StepStatus
	Payment      StepStatus
	Notification StepStatus
	Failure      *Failure

	// PaymentIntent is the provider's object; empty until the payment started.
	PaymentIntent string

	// CancelRequested tells that the merchant wants the charge canceled, unless
	// it is captured first.
	CancelRequested bool

	// Refunds are in the order in which they were requested.
	Refunds []Refund

	// Untold are the versions of the outcomes, the charge's and its refunds', of
	// which the merchant wants to be told and has not been.
	Untold []int

	// Version is the number of events folded.
	Version int

	// AttemptVersion is the version of the event that opened the payment
	// attempt under way. That event's id is the Idempotency-Key of the
	// attempt's provider call: a crash, a cut or a time-out keeps it, and only an
	// answer that the provider may have saved opens a new one.
	AttemptVersion int

	// OutcomeVersion is the version of the terminal event, 0 before it.
	OutcomeVersion int
}

// Exists tells whether the stream has an event at all.
func (c Charge) Exists() bool { return c.Version > 0 }

// Terminal tells whether the charge has come to its outcome.
func (c Charge) Terminal() bool { return c.OutcomeVersion > 0 }

// Started tells whether there may be an object at the provider that could take
// money.
func (c Charge) Started() bool { return c.PaymentIntent != "" }

// Tells tells whether the merchant is yet to be told of the outcome at version.
func (c Charge) Tells(version int) bool { return slices.Contains(c.Untold, version) }

// Settled tells whether nothing is left to be carried out: the charge has its
// outcome and so has every refund. What the merchant is told is not part of it.
func (c Charge) Settled() bool { return c.Terminal() && len(c.PendingRefunds()) == 0 }

// Fold folds events into a charge, one after another. The argument is not changed.
func Fold(c Charge, events ...Event) Charge {
	c.Refunds, c.Untold = slices.Clone(c.Refunds), slices.Clone(c.Untold) // an older fold keeps its own
	for _, e := range events {
		c.apply(e)
	}
	return c
}

// Evolve folds one event into the charge. It never fails: what is stored has
// happened. The argument is not changed.
func Evolve(c Charge, e Event) Charge { return Fold(c, e) }

func (c *Charge) apply(e Event) {
	c.Version++
	switch e := e.(type) {
	case ChargeRequested:
		c.MerchantID = e.MerchantID
		c.OrderID = e.OrderID
		c.Amount = Money{Amount: e.Amount, Currency: e.Currency}
		c.Fee = e.Fee
		c.PaymentMethod = e.PaymentMethod
		c.Items = e.Items
		c.Description = e.Description
		c.Metadata = e.Metadata
		c.Status = Pending
		c.Inventory, c.Payment, c.Notification = StepPending, StepPending, StepPending
		c.AttemptVersion = c.Version
		if len(e.Items) == 0 {
			c.Inventory = StepSkipped
		}
		if !e.Notify {
			c.Notification = StepSkipped
		}
	case InventoryReserved:
		c.Inventory = StepDone
		c.AttemptVersion = c.Version
	case InventoryRejected:
		c.Inventory, c.Payment = StepFailed, StepSkipped
	case InventoryReleased:
		c.Inventory = StepCompensated
	case PaymentStarted:
		c.PaymentIntent = e.PaymentIntent
		c.AttemptVersion = c.Version
	case PaymentAttemptFailed:
		c.AttemptVersion = c.Version
	case PaymentCaptured:
		c.Payment = StepDone
	case PaymentDeclined:
		c.Payment = StepFailed
	case ChargeSucceeded:
		c.Status = Succeeded
		c.ended()
	case ChargeFailed:
		failure := e.Failure
		c.Status, c.Failure = Failed, &failure
		c.Inventory, c.Payment = c.Inventory.unlessPending(), c.Payment.unlessPending()
		c.ended()
	case ChargeCancelRequested:
		c.CancelRequested = true
	case RefundRequested:
		c.refundOpened(e)
	case RefundAttemptFailed:
		c.refundChanged(e.RefundID, func(r *Refund) { r.AttemptVersion = c.Version })
	case RefundSucceeded:
		c.refundEnded(e.RefundID, func(r *Refund) {
			r.Status, r.ProviderRefund, r.OutcomeVersion = RefundStatusSucceeded, e.ProviderRefund, c.Version
		})
	case RefundFailed:
		c.refundEnded(e.RefundID, func(r *Refund) {
			r.Status, r.ProviderRefund, r.OutcomeVersion = RefundStatusFailed, e.ProviderRefund, c.Version
		})
	case RefundReversed:
		c.refundEnded(e.RefundID, func(r *Refund) {
			r.Status, r.ReversalVersion = RefundStatusFailed, c.Version
		})
	case MerchantNotified:
		c.told(e.about(*c))
	}
}

func (c *Charge) ended() {
	c.OutcomeVersion = c.Version
	if c.Notification == StepPending {
		c.Untold = append(c.Untold, c.Version)
	}
}

// unlessPending is for a charge that ended before the step's turn came.
func (s StepStatus) unlessPending() StepStatus {
	if s == StepPending {
		return StepSkipped
	}
	return s
}

func (c *Charge) told(version int) {
	c.Untold = slices.DeleteFunc(c.Untold, func(v int) bool { return v == version })
	if version == c.OutcomeVersion {
		c.Notification = StepDone
	}
}
