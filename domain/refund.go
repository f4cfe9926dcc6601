package domain

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Refusals of requests for refunds.
var (
	// ErrNotCaptured refuses a refund of a charge that took no money.
	ErrNotCaptured = errors.New("the charge is not captured")
	// ErrExceedsCaptured refuses a refund of more than is left.
	ErrExceedsCaptured = errors.New("the refund is more than is left of the charge")
	// ErrTooManyRefunds refuses a refund beyond MaxRefunds.
	ErrTooManyRefunds = errors.New("the charge has had as many refunds as it may have")
)

// MaxRefunds is how many refunds a charge may have, failed ones included: a stream is bounded, see MaxKeys.
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
	Notify bool
	Status RefundStatus

	ProviderRefund string // the provider's object; empty until it is known
	Failures       int    // how many keys of calls to create it failed at the provider
	AttemptVersion int    // of the event that opened its present attempt
}

// IsLastKey reports whether the calls to create the refund have come to their last key (MaxKeys).
func (r Refund) IsLastKey() bool { return r.Failures >= MaxKeys-1 }

// ProviderKey is the Idempotency-Key of the next call that creates the refund at the provider.
func (r Refund) ProviderKey() string { return fmt.Sprintf("%s-%d", r.ID, r.Failures) }

// Refund returns the refund with an id.
func (c Charge) Refund(id string) (r Refund, found bool) {
	c.changeRefund(id, func(its *Refund) { r, found = *its, true })
	return r, found
}

func (c *Charge) changeRefund(id string, change func(*Refund)) {
	if i := slices.IndexFunc(c.Refunds, func(r Refund) bool { return r.ID == id }); i >= 0 {
		change(&c.Refunds[i])
	}
}

func (c Charge) sumOfRefunds(statuses ...RefundStatus) (sum int64) {
	for _, r := range c.Refunds {
		if slices.Contains(statuses, r.Status) {
			sum += r.Amount
		}
	}
	return sum
}

// AmountRefunded is the sum of the refunds that succeeded, in minor units.
func (c Charge) AmountRefunded() int64 { return c.sumOfRefunds(RefundStatusSucceeded) }

// Refundable is the amount that a further refund may return, in minor units: what was captured, less the refunds that
// succeeded and those that are pending. A refund made outside may take what a pending one asked for.
func (c Charge) Refundable() int64 {
	if c.StepStatus(Payment) != StepDone {
		return 0
	}
	return max(0, c.Amount-c.sumOfRefunds(RefundStatusSucceeded, RefundStatusPending))
}

// pendingRefund returns a refund without outcome that an object of the provider may end: an
// object ends one refund only.
func (c Charge) pendingRefund(id, object string) (r Refund, pending bool) {
	r, _ = c.Refund(id)
	return r, r.Status == RefundStatusPending && !c.endedBy(object)
}

// endedBy reports whether an object of the provider has ended a refund.
func (c Charge) endedBy(object string) bool {
	return object != "" && slices.ContainsFunc(c.Refunds, func(r Refund) bool { return r.ProviderRefund == object })
}

// endRefund gives a refund its outcome, or the reversal of its outcome, and the charge its status.
func (c *Charge) endRefund(id string, status RefundStatus, object string) {
	c.changeRefund(id, func(r *Refund) {
		r.ProviderRefund, r.Status = object, status // the object of a reversal is that of the success
		if r.Notify {
			c.Unnotified = append(c.Unnotified, c.Version)
		}
		switch c.AmountRefunded() {
		case 0:
			c.Status = Succeeded
		case c.Amount:
			c.Status = Refunded
		default:
			c.Status = PartiallyRefunded
		}
	})
}

var refundEvents = []EventType{
	{Name: "refund.requested.v1", Request: true, Zero: RefundRequested{}},
	{Name: "refund.attempt_failed.v1", Zero: RefundAttemptFailed{}},
	{Name: "refund.succeeded.v1", Webhook: "refund.succeeded", Zero: RefundSucceeded{}},
	{Name: "refund.observed.v1", Webhook: "refund.succeeded", Zero: RefundObserved{}},
	{Name: "refund.failed.v1", Webhook: "refund.failed", Zero: RefundFailed{}},
	{Name: "refund.reversed.v1", Webhook: "refund.failed", Zero: RefundReversed{}}, // to the merchant it failed
}

// RefundRequested says that a part of a captured charge is to be returned.
type RefundRequested struct {
	RefundID string `json:"refund_id" detail:"refund_id"`
	Amount   int64  `json:"amount" detail:"amount"`
	Reason   string `json:"reason,omitempty"`
	Notify   bool   `json:"notify" detail:"notify"`
}

func (e RefundRequested) apply(c *Charge) {
	c.Refunds = append(c.Refunds, Refund{
		ID: e.RefundID, Amount: e.Amount, Notify: e.Notify, Status: RefundStatusPending, AttemptVersion: c.Version,
	})
}

func (e RefundRequested) allowedIn(c Charge) bool { return e.refusal(c) == nil }

// refusal is why the charge does not allow the request.
func (e RefundRequested) refusal(c Charge) error {
	_, requested := c.Refund(e.RefundID)
	left := c.Refundable()
	switch {
	case !c.captured():
		return fmt.Errorf("refund a charge that is %s: %w", c.Status, ErrNotCaptured)
	case len(c.Refunds) >= MaxRefunds:
		return fmt.Errorf("refund number %d: %w", len(c.Refunds)+1, ErrTooManyRefunds)
	case left == 0 || e.Amount > left:
		return fmt.Errorf("refund %d of %d left: %w", e.Amount, left, ErrExceedsCaptured)
	case requested || e.RefundID == "" || e.Amount < MinAmount:
		return fmt.Errorf("refund %q of %d: %w", e.RefundID, e.Amount, ErrInvalid)
	}
	return nil
}

// RefundAttemptFailed is to a refund what PaymentAttemptFailed is to a payment: the next
// call has another Idempotency-Key, which counts the failed attempts of the refund.
type RefundAttemptFailed struct {
	RefundID   string `json:"refund_id" detail:"refund_id"`
	StatusCode int    `json:"status_code" detail:"provider_status"`
	RequestID  string `json:"request_id,omitempty" detail:"provider_request"`
}

func (e RefundAttemptFailed) apply(c *Charge) {
	c.changeRefund(e.RefundID, func(r *Refund) {
		r.AttemptVersion = c.Version
		r.Failures++
	})
}

func (e RefundAttemptFailed) allowedIn(c Charge) bool {
	r, pending := c.pendingRefund(e.RefundID, "")
	return pending && !r.IsLastKey()
}

// RefundSucceeded says that the provider returned the money.
type RefundSucceeded struct {
	RefundID       string `json:"refund_id" detail:"refund_id"`
	Provider       string `json:"provider" detail:"provider"`
	ProviderRefund string `json:"provider_refund" detail:"provider_refund"`
	Amount         int64  `json:"amount" detail:"amount"`
}

func (e RefundSucceeded) apply(c *Charge) {
	c.endRefund(e.RefundID, RefundStatusSucceeded, e.ProviderRefund)
}

func (e RefundSucceeded) allowedIn(c Charge) bool {
	r, pending := c.pendingRefund(e.RefundID, e.ProviderRefund)
	return pending && e.Amount == r.Amount && e.ProviderRefund != ""
}

// RefundObserved says that the provider returned money by a refund that was not requested
// here: one made in its dashboard, whose RefundID is the provider's id, or one of ours whose
// request the stream has lost, such as in a restored database.
type RefundObserved struct {
	RefundID       string `json:"refund_id" detail:"refund_id"`
	Provider       string `json:"provider" detail:"provider"`
	ProviderRefund string `json:"provider_refund" detail:"provider_refund"`
	Amount         int64  `json:"amount" detail:"amount"`
	Notify         bool   `json:"notify" detail:"notify"`
}

func (e RefundObserved) apply(c *Charge) {
	RefundRequested{RefundID: e.RefundID, Amount: e.Amount, Notify: e.Notify}.apply(c)
	c.endRefund(e.RefundID, RefundStatusSucceeded, e.ProviderRefund)
}

func (e RefundObserved) allowedIn(c Charge) bool {
	_, known := c.Refund(e.RefundID)
	return !known && e.RefundID != "" && !c.endedBy(e.ProviderRefund) && c.captured() &&
		e.Amount >= MinAmount && e.Amount <= c.Amount-c.AmountRefunded()
}

// RefundFailed says that the provider did not return the money, and will not under this refund.
type RefundFailed struct {
	RefundID       string      `json:"refund_id" detail:"refund_id"`
	ProviderRefund string      `json:"provider_refund,omitempty" detail:"provider_refund"` // empty if the provider made none
	Code           FailureCode `json:"code" detail:"code"`
	Message        string      `json:"message" detail:"message"`
}

func (e RefundFailed) apply(c *Charge) { c.endRefund(e.RefundID, RefundStatusFailed, e.ProviderRefund) }

func (e RefundFailed) allowedIn(c Charge) bool {
	_, pending := c.pendingRefund(e.RefundID, e.ProviderRefund)
	return pending
}

// RefundReversed says that a refund failed at the provider after it had succeeded there; the money came back to us.
type RefundReversed struct {
	RefundID       string `json:"refund_id" detail:"refund_id"`
	ProviderRefund string `json:"provider_refund" detail:"provider_refund"`
	Amount         int64  `json:"amount" detail:"amount"`
	Message        string `json:"message,omitempty" detail:"message"`
}

func (e RefundReversed) apply(c *Charge) {
	c.endRefund(e.RefundID, RefundStatusFailed, e.ProviderRefund)
}

func (e RefundReversed) allowedIn(c Charge) bool {
	r, _ := c.Refund(e.RefundID)
	return r.Status == RefundStatusSucceeded && e.Amount == r.Amount && e.ProviderRefund == r.ProviderRefund
}

// RequestRefund returns the event of a request to return money: none if the refund was requested before. An
// amount of 0 is all that is left. The errors are ErrNotCaptured, ErrTooManyRefunds, ErrExceedsCaptured, ErrInvalid.
func (c Charge) RequestRefund(r RefundRequested) ([]Event, error) {
	if _, requested := c.Refund(r.RefundID); requested {
		return nil, nil
	}
	if r.Amount == 0 {
		r.Amount = c.Refundable()
	}
	if err := r.refusal(c); err != nil {
		return nil, err
	}
	return []Event{r}, nil
}

// Resolve returns the event of what the provider's object says of the refund: it succeeded, it failed, or it failed
// after it had succeeded. None if that is recorded. object is empty if the provider made none.
func (r Refund) Resolve(object string, failed bool, why string) []Event {
	switch {
	case r.Status == RefundStatusPending && failed:
		return []Event{RefundFailed{RefundID: r.ID, ProviderRefund: object, Code: ProviderRefused, Message: why}}
	case r.Status == RefundStatusPending:
		return []Event{RefundSucceeded{RefundID: r.ID, Provider: Provider, ProviderRefund: object, Amount: r.Amount}}
	case r.Status == RefundStatusSucceeded && failed:
		return []Event{RefundReversed{RefundID: r.ID, ProviderRefund: object, Amount: r.Amount, Message: why}}
	}
	return nil
}

// ObserveRefund returns the event of a refund that succeeded at the provider and was not requested
// here; none if that is recorded. reference is our id, if the object has one: one that a restore has
// lost. The error is ErrMismatch, wrapped, for another currency.
func (c Charge) ObserveRefund(reference, object string, given Money) ([]Event, error) {
	switch {
	case c.endedBy(object):
		return nil, nil
	case given.Currency != c.Currency:
		return nil, fmt.Errorf("%d %s given back: %w", given.Amount, given.Currency, ErrMismatch)
	}
	return []Event{RefundObserved{
		RefundID: cmp.Or(reference, object), Provider: Provider, ProviderRefund: object, Amount: given.Amount, Notify: c.Notify,
	}}, nil
}

// OrderingKey returns the key of the message that announces a request: the refund of a request for one, and
// the charge of every other request, whose messages are processed in order.
func OrderingKey(charge string, e Event) string {
	if refund, ok := e.(RefundRequested); ok {
		return refund.RefundID
	}
	return charge
}
