package domain

import (
	"errors"
	"fmt"
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

// MaxRefunds is how many refunds a charge may have, whatever became of them. A
// stream is folded at every look at its charge, so it must not grow without end.
const MaxRefunds = 100

// RefundStatus is what a refund has come to, as merchants see it.
type RefundStatus string

// The states of a refund.
const (
	RefundStatusPending   RefundStatus = "pending"
	RefundStatusSucceeded RefundStatus = "succeeded"
	RefundStatusFailed    RefundStatus = "failed"
)

// Refund is a part of a captured charge on its way back. It lives in the
// charge's stream, so that the sum of refunds is decided at a version.
type Refund struct {
	ID     string
	Amount int64 // minor units of the charge's currency
	Reason string
	Notify bool
	Status RefundStatus

	// ProviderRefund is the provider's object; empty until it is known.
	ProviderRefund string

	// RequestVersion is the version of the event that requested the refund.
	RequestVersion int

	// AttemptVersion is the version of the event that opened the attempt under
	// way. That event's id is the Idempotency-Key of the attempt's provider call.
	AttemptVersion int

	// OutcomeVersion is the version at which it succeeded or failed, 0 before.
	OutcomeVersion int

	// ReversalVersion is the version at which it failed after it had succeeded,
	// 0 if it did not.
	ReversalVersion int
}

// Refund is the refund with an id.
func (c Charge) Refund(id string) (Refund, bool) {
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
	var pending []Refund
	for _, r := range c.Refunds {
		if r.Status == RefundStatusPending {
			pending = append(pending, r)
		}
	}
	return pending
}

// Refunded is the sum of the refunds that succeeded, in minor units.
func (c Charge) Refunded() int64 {
	var sum int64
	for _, r := range c.Refunds {
		if r.Status == RefundStatusSucceeded {
			sum += r.Amount
		}
	}
	return sum
}

// Left is what a further refund may give back, in minor units: what was
// captured, less the refunds that succeeded and those on their way.
func (c Charge) Left() int64 {
	if c.Payment != StepDone {
		return 0
	}
	left := c.Amount.Amount
	for _, r := range c.Refunds {
		if r.Status != RefundStatusFailed {
			left -= r.Amount
		}
	}
	return left
}

// spent tells whether the provider's object has ended a refund: it does that to
// one only.
func (c Charge) spent(object string) bool {
	return object != "" && slices.ContainsFunc(c.Refunds, func(r Refund) bool { return r.ProviderRefund == object })
}

// refundedStatus is the status of a captured charge.
func (c Charge) refundedStatus() Status {
	switch c.Refunded() {
	case 0:
		return Succeeded
	case c.Amount.Amount:
		return Refunded
	default:
		return PartiallyRefunded
	}
}

type (
	// RequestRefund asks to give back money of a captured charge.
	RequestRefund struct {
		RefundID string
		Amount   int64 // minor units; 0 for all that is left
		Reason   string
		Notify   bool
	}

	// FailRefundAttempt records that the provider answered with an error of its
	// own.
	FailRefundAttempt struct {
		RefundID   string
		StatusCode int
		RequestID  string
	}

	// SucceedRefund records that the provider gave the money back.
	SucceedRefund struct {
		RefundID       string
		Provider       string
		ProviderRefund string
		Amount         Money
	}

	// FailRefund records that the provider did not give the money back and never
	// will under this refund.
	FailRefund struct {
		RefundID       string
		ProviderRefund string // empty if the provider made none
		Code           FailureCode
		Message        string
	}

	// ReverseRefund records that a refund failed at the provider after it had
	// succeeded: the money came back to us.
	ReverseRefund struct {
		RefundID       string
		ProviderRefund string
		Message        string
	}
)

func (RequestRefund) command()     {}
func (FailRefundAttempt) command() {}
func (SucceedRefund) command()     {}
func (FailRefund) command()        {}
func (ReverseRefund) command()     {}

func (r RequestRefund) decide(c Charge) ([]Event, error) {
	if _, requested := c.Refund(r.RefundID); requested {
		return nil, nil
	}
	amount, left := r.Amount, c.Left()
	if amount == 0 {
		amount = left
	}
	switch {
	case c.Payment != StepDone:
		return nil, fmt.Errorf("refund a charge that is %s: %w", c.Status, ErrNotCaptured)
	case r.RefundID == "" || amount < 0:
		return nil, fmt.Errorf("refund %q of %d: %w", r.RefundID, amount, ErrInvalid)
	case len(c.Refunds) >= MaxRefunds:
		return nil, fmt.Errorf("refund number %d: %w", len(c.Refunds)+1, ErrTooManyRefunds)
	case left == 0 || amount > left:
		return nil, fmt.Errorf("refund %d of %d left: %w", amount, left, ErrExceedsCaptured)
	}
	return []Event{RefundRequested{RefundID: r.RefundID, Amount: amount, Reason: r.Reason, Notify: r.Notify}}, nil
}

func (f FailRefundAttempt) decide(c Charge) ([]Event, error) {
	r, requested := c.Refund(f.RefundID)
	switch {
	case !requested:
		return nil, ErrNoRefund
	case r.Status != RefundStatusPending:
		return nil, nil // the refund was decided otherwise: the attempt's failure no longer matters
	}
	return []Event{RefundAttemptFailed(f)}, nil
}

func (s SucceedRefund) decide(c Charge) ([]Event, error) {
	r, requested := c.Refund(s.RefundID)
	switch {
	case !requested:
		return nil, ErrNoRefund
	case s.ProviderRefund == "" || s.Amount.Amount != r.Amount || s.Amount.Currency != c.Amount.Currency:
		return nil, fmt.Errorf("gave back %d %s by %q: %w",
			s.Amount.Amount, s.Amount.Currency, s.ProviderRefund, ErrMismatch)
	case r.Status == RefundStatusPending && c.spent(s.ProviderRefund):
		return nil, fmt.Errorf("%s gave back another refund than %s: %w", s.ProviderRefund, r.ID, ErrMismatch)
	case r.Status == RefundStatusPending:
		return []Event{RefundSucceeded{
			RefundID: s.RefundID, Provider: s.Provider, ProviderRefund: s.ProviderRefund, Amount: s.Amount.Amount,
		}}, nil
	case s.ProviderRefund != r.ProviderRefund:
		return nil, fmt.Errorf("refund %s was %s by %q: %w", r.ID, r.Status, r.ProviderRefund, ErrMismatch)
	case r.Status == RefundStatusSucceeded || r.ReversalVersion > 0:
		return nil, nil
	default:
		return nil, fmt.Errorf("succeed a refund that is %s: %w", r.Status, ErrFinished)
	}
}

func (f FailRefund) decide(c Charge) ([]Event, error) {
	r, requested := c.Refund(f.RefundID)
	switch {
	case !requested:
		return nil, ErrNoRefund
	case r.Status == RefundStatusPending && c.spent(f.ProviderRefund):
		return nil, fmt.Errorf("%s failed another refund than %s: %w", f.ProviderRefund, r.ID, ErrMismatch)
	case r.Status == RefundStatusPending:
		return []Event{RefundFailed(f)}, nil
	case r.Status == RefundStatusFailed:
		return nil, nil
	default:
		return nil, fmt.Errorf("fail a refund that is %s: %w", r.Status, ErrFinished)
	}
}

func (v ReverseRefund) decide(c Charge) ([]Event, error) {
	r, requested := c.Refund(v.RefundID)
	switch {
	case !requested:
		return nil, ErrNoRefund
	case r.Status == RefundStatusFailed:
		return nil, nil
	case r.Status == RefundStatusPending:
		return nil, fmt.Errorf("reverse a refund that is %s: %w", r.Status, ErrOutOfOrder)
	case v.ProviderRefund != r.ProviderRefund:
		return nil, fmt.Errorf("refund %s was made by %s, not by %q: %w", r.ID, r.ProviderRefund, v.ProviderRefund, ErrMismatch)
	}
	return []Event{RefundReversed{
		RefundID: v.RefundID, ProviderRefund: v.ProviderRefund, Amount: r.Amount, Message: v.Message,
	}}, nil
}

func (c *Charge) refundOpened(e RefundRequested) {
	c.Refunds = append(c.Refunds, Refund{
		ID: e.RefundID, Amount: e.Amount, Reason: e.Reason, Notify: e.Notify,
		Status: RefundStatusPending, RequestVersion: c.Version, AttemptVersion: c.Version,
	})
}

func (c *Charge) refundChanged(id string, change func(*Refund)) {
	if i := c.refundIndex(id); i >= 0 {
		change(&c.Refunds[i])
	}
}

// refundEnded is a change that is an outcome: it shows in the charge's status,
// and the merchant may want to be told.
func (c *Charge) refundEnded(id string, change func(*Refund)) {
	c.refundChanged(id, change)
	r, requested := c.Refund(id)
	if !requested {
		return
	}
	c.Status = c.refundedStatus()
	if r.Notify {
		c.Untold = append(c.Untold, c.Version)
	}
}

// The next four tell whether an event about a refund may be the next one of c.

func (c Charge) admitsRequest(e RefundRequested) bool {
	_, requested := c.Refund(e.RefundID)
	return !requested && e.RefundID != "" && c.Terminal() && e.Amount >= MinAmount && e.Amount <= c.Left()
}

func (c Charge) admitsSuccess(e RefundSucceeded) bool {
	r, _ := c.Refund(e.RefundID)
	return r.Status == RefundStatusPending && e.Amount == r.Amount &&
		e.ProviderRefund != "" && !c.spent(e.ProviderRefund)
}

func (c Charge) admitsFailure(e RefundFailed) bool {
	r, _ := c.Refund(e.RefundID)
	return r.Status == RefundStatusPending && !c.spent(e.ProviderRefund)
}

func (c Charge) admitsReversal(e RefundReversed) bool {
	r, _ := c.Refund(e.RefundID)
	return r.Status == RefundStatusSucceeded && e.Amount == r.Amount && e.ProviderRefund == r.ProviderRefund
}

// outcomeAt tells whether the event at version is an outcome, the charge's or
// one of its refunds'.
func (c Charge) outcomeAt(version int) bool {
	if version < 1 {
		return false
	}
	return version == c.OutcomeVersion || slices.ContainsFunc(c.Refunds, func(r Refund) bool {
		return version == r.OutcomeVersion || version == r.ReversalVersion
	})
}
