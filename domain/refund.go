package domain

import (
	"errors"
	"slices"
)

// Refusals of commands about refunds, beside those of Decide.
var (
	// ErrNotCaptured refuses a refund of a charge that took no money.
	ErrNotCaptured = errors.New("the charge is not captured")
	// ErrExceedsCaptured refuses a refund of more than is left.
	ErrExceedsCaptured = errors.New("the refund is more than is left of the charge")
	// ErrTooManyRefunds refuses a refund beyond MaxRefunds.
	ErrTooManyRefunds = errors.New("the charge has had as many refunds as it may have")
	// ErrNoRefund refuses a command about a refund that was not requested.
	ErrNoRefund = errors.New("the refund does not exist")
)

// MaxRefunds is the number of refunds that a charge may have, failed ones included. Every
// read of a charge folds its stream, so a stream must not grow without bound.
const MaxRefunds = 100

// RefundStatus is the state of a refund, as merchants see it.
type RefundStatus string

// The states of a refund.
const (
	RefundStatusPending   RefundStatus = "pending"
	RefundStatusSucceeded RefundStatus = "succeeded"
	RefundStatusFailed    RefundStatus = "failed"
)

// Refund returns a part of a captured charge. It lives in the stream of the charge, so
// that the sum of the refunds is decided at a version.
type Refund struct {
	ID     string
	Amount int64 // minor units of the charge's currency
	Reason string
	Notify bool
	Status RefundStatus

	// ProviderRefund is the provider's object; empty until it is known.
	ProviderRefund string

	// The versions of the events that requested the refund, opened its present attempt
	// (the id of that event is the Idempotency-Key of the provider call), ended it, and
	// reversed it after it had succeeded; 0 where there is none.
	RequestVersion, AttemptVersion, OutcomeVersion, ReversalVersion int
}

// Refund is the refund with an id.
func (c Charge) Refund(id string) (r Refund, found bool) {
	i := c.refundIndex(id)
	if i < 0 {
		return Refund{}, false
	}
	return c.Refunds[i], true
}

func (c Charge) refundIndex(id string) int {
	return slices.IndexFunc(c.Refunds, func(r Refund) bool { return r.ID == id })
}

// PendingRefunds are the refunds without outcome, oldest first.
func (c Charge) PendingRefunds() []Refund {
	return slices.DeleteFunc(slices.Clone(c.Refunds), func(r Refund) bool { return r.Status != RefundStatusPending })
}

func (c Charge) sumOfRefunds(statuses ...RefundStatus) (sum int64) {
	for _, r := range c.Refunds {
		if slices.Contains(statuses, r.Status) {
			sum += r.Amount
		}
	}
	return sum
}

// Refunded is the sum of the refunds that succeeded, in minor units.
func (c Charge) Refunded() int64 { return c.sumOfRefunds(RefundStatusSucceeded) }

// Left is the amount that a further refund may return, in minor units: what was captured,
// less the refunds that succeeded and those that are pending.
func (c Charge) Left() int64 {
	if c.Step(Payment) != StepDone {
		return 0
	}
	return c.Amount.Amount - c.sumOfRefunds(RefundStatusSucceeded, RefundStatusPending)
}

// isUsed reports whether an object of the provider has ended a refund: it ends one only.
func (c Charge) isUsed(object string) bool {
	return object != "" && slices.ContainsFunc(c.Refunds, func(r Refund) bool { return r.ProviderRefund == object })
}

func (c *Charge) changeRefund(id string, change func(*Refund)) {
	if i := c.refundIndex(id); i >= 0 {
		change(&c.Refunds[i])
	}
}

// endRefund is a change that is an outcome: it shows in the status of the charge, and the
// merchant may want a webhook.
func (c *Charge) endRefund(id string, change func(*Refund)) {
	c.changeRefund(id, func(r *Refund) {
		change(r)
		if r.Notify {
			c.Unnotified = append(c.Unnotified, c.Version)
		}
		switch c.Refunded() {
		case 0:
			c.Status = Succeeded
		case c.Amount.Amount:
			c.Status = Refunded
		default:
			c.Status = PartiallyRefunded
		}
	})
}

// outcomeAt reports whether the event at a version is an outcome of the charge or of one
// of its refunds.
func (c Charge) outcomeAt(version int) bool {
	return version > 0 && (version == c.OutcomeVersion || slices.ContainsFunc(c.Refunds, func(r Refund) bool {
		return version == r.OutcomeVersion || version == r.ReversalVersion
	}))
}

var refundEvents = []EventType{
	request[RefundRequested](), event[RefundAttemptFailed](), outcome[RefundSucceeded]("refund.succeeded"),
	outcome[RefundFailed]("refund.failed"), outcome[RefundReversed]("refund.failed"), // to the merchant it failed
}

// RefundRequested says that a part of a captured charge is to be returned.
type RefundRequested struct {
	RefundID string `json:"refund_id" detail:"refund_id"`
	Amount   int64  `json:"amount" detail:"amount"`
	Reason   string `json:"reason,omitempty"`
	Notify   bool   `json:"notify" detail:"notify"`
}

func (RefundRequested) stored() string { return "refund.requested.v1" }
func (e RefundRequested) apply(c *Charge) {
	c.Refunds = append(c.Refunds, Refund{
		ID: e.RefundID, Amount: e.Amount, Reason: e.Reason, Notify: e.Notify,
		Status: RefundStatusPending, RequestVersion: c.Version, AttemptVersion: c.Version,
	})
}

func (e RefundRequested) admitted(c Charge) bool {
	_, requested := c.Refund(e.RefundID)
	return !requested && e.RefundID != "" && c.Terminal() && e.Amount >= MinAmount && e.Amount <= c.Left()
}

func (e RefundRequested) post(b *chart, _ Charge) {
	b.move(b.merchantPayable(), b.refundClearing(), e.Amount)
}

// RefundAttemptFailed is to a refund what PaymentAttemptFailed is to a payment: its id is
// the key of the next call.
type RefundAttemptFailed struct {
	RefundID   string `json:"refund_id" detail:"refund_id"`
	StatusCode int    `json:"status_code" detail:"provider_status"`
	RequestID  string `json:"request_id,omitempty" detail:"provider_request"`
}

func (RefundAttemptFailed) stored() string { return "refund.attempt_failed.v1" }
func (e RefundAttemptFailed) apply(c *Charge) {
	c.changeRefund(e.RefundID, func(r *Refund) { r.AttemptVersion = c.Version })
}

func (e RefundAttemptFailed) admitted(c Charge) bool {
	r, _ := c.Refund(e.RefundID)
	return r.Status == RefundStatusPending
}

// RefundSucceeded says that the provider returned the money.
type RefundSucceeded struct {
	RefundID       string `json:"refund_id" detail:"refund_id"`
	Provider       string `json:"provider" detail:"provider"`
	ProviderRefund string `json:"provider_refund" detail:"provider_refund"`
	Amount         int64  `json:"amount" detail:"amount"`
}

func (RefundSucceeded) stored() string { return "refund.succeeded.v1" }
func (e RefundSucceeded) apply(c *Charge) {
	c.endRefund(e.RefundID, func(r *Refund) {
		r.Status, r.ProviderRefund, r.OutcomeVersion = RefundStatusSucceeded, e.ProviderRefund, c.Version
	})
}

func (e RefundSucceeded) admitted(c Charge) bool {
	r, _ := c.Refund(e.RefundID)
	return r.Status == RefundStatusPending && e.Amount == r.Amount && e.ProviderRefund != "" && !c.isUsed(e.ProviderRefund)
}

func (e RefundSucceeded) post(b *chart, _ Charge) {
	b.move(b.refundClearing(), b.providerReceivable(), e.Amount)
}

// RefundFailed says that the provider did not return the money, and will not under this refund.
type RefundFailed struct {
	RefundID       string      `json:"refund_id" detail:"refund_id"`
	ProviderRefund string      `json:"provider_refund,omitempty" detail:"provider_refund"` // empty if the provider made none
	Code           FailureCode `json:"code" detail:"code"`
	Message        string      `json:"message" detail:"message"`
}

func (RefundFailed) stored() string { return "refund.failed.v1" }
func (e RefundFailed) apply(c *Charge) {
	c.endRefund(e.RefundID, func(r *Refund) {
		r.Status, r.ProviderRefund, r.OutcomeVersion = RefundStatusFailed, e.ProviderRefund, c.Version
	})
}

func (e RefundFailed) admitted(c Charge) bool {
	r, _ := c.Refund(e.RefundID)
	return r.Status == RefundStatusPending && !c.isUsed(e.ProviderRefund)
}

func (e RefundFailed) post(b *chart, c Charge) {
	r, _ := c.Refund(e.RefundID)
	b.move(b.refundClearing(), b.merchantPayable(), r.Amount)
}

// RefundReversed says that a refund failed at the provider after it had succeeded there; the money
// came back to us.
type RefundReversed struct {
	RefundID       string `json:"refund_id" detail:"refund_id"`
	ProviderRefund string `json:"provider_refund" detail:"provider_refund"`
	Amount         int64  `json:"amount" detail:"amount"`
	Message        string `json:"message,omitempty" detail:"message"`
}

func (RefundReversed) stored() string { return "refund.reversed.v1" }
func (e RefundReversed) apply(c *Charge) {
	c.endRefund(e.RefundID, func(r *Refund) { r.Status, r.ReversalVersion = RefundStatusFailed, c.Version })
}

func (e RefundReversed) admitted(c Charge) bool {
	r, _ := c.Refund(e.RefundID)
	return r.Status == RefundStatusSucceeded && e.Amount == r.Amount && e.ProviderRefund == r.ProviderRefund
}

func (e RefundReversed) post(b *chart, _ Charge) {
	b.move(b.providerReceivable(), b.merchantPayable(), e.Amount)
}
