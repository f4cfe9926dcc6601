package domain

import "fmt"

// RequestRefund asks to return money of a captured charge.
type RequestRefund struct {
	RefundID string
	Amount   int64 // minor units; 0 for all that is left
	Reason   string
	Notify   bool
}

func (r RequestRefund) decide(c Charge) ([]Event, error) {
	if _, requested := c.Refund(r.RefundID); requested {
		return nil, nil
	}
	left := c.Left()
	event := RefundRequested(r)
	if r.Amount == 0 {
		event.Amount = left
	}
	switch {
	case c.Step(Payment) != StepDone:
		return nil, fmt.Errorf("refund a charge that is %s: %w", c.Status, ErrNotCaptured)
	case r.RefundID == "" || event.Amount < 0:
		return nil, fmt.Errorf("refund %q of %d: %w", r.RefundID, event.Amount, ErrInvalid)
	case len(c.Refunds) >= MaxRefunds:
		return nil, fmt.Errorf("refund number %d: %w", len(c.Refunds)+1, ErrTooManyRefunds)
	case left == 0 || event.Amount > left:
		return nil, fmt.Errorf("refund %d of %d left: %w", event.Amount, left, ErrExceedsCaptured)
	}
	return []Event{event}, nil
}

// FailRefundAttempt records that the provider answered with an error of its own.
type FailRefundAttempt RefundAttemptFailed

func (f FailRefundAttempt) decide(c Charge) ([]Event, error) {
	r, requested := c.Refund(f.RefundID)
	switch {
	case !requested:
		return nil, ErrNoRefund
	case r.Status != RefundStatusPending:
		return nil, nil // the refund has its outcome: the failed attempt no longer matters
	}
	return []Event{RefundAttemptFailed(f)}, nil
}

// SucceedRefund records that the provider returned the money.
type SucceedRefund struct {
	RefundID       string
	Provider       string
	ProviderRefund string
	Amount         Money
}

func (s SucceedRefund) decide(c Charge) ([]Event, error) {
	r, requested := c.Refund(s.RefundID)
	switch {
	case !requested:
		return nil, ErrNoRefund
	case s.ProviderRefund == "" || s.Amount.Amount != r.Amount || s.Amount.Currency != c.Amount.Currency:
		return nil, fmt.Errorf("gave back %d %s by %q: %w",
			s.Amount.Amount, s.Amount.Currency, s.ProviderRefund, ErrMismatch)
	case r.Status == RefundStatusPending && c.isUsed(s.ProviderRefund):
		return nil, fmt.Errorf("%s gave back another refund than %s: %w", s.ProviderRefund, r.ID, ErrMismatch)
	case r.Status == RefundStatusPending:
		return []Event{RefundSucceeded{
			RefundID: s.RefundID, Provider: s.Provider, ProviderRefund: s.ProviderRefund, Amount: s.Amount.Amount,
		}}, nil
	case s.ProviderRefund != r.ProviderRefund:
		return nil, fmt.Errorf("refund %s was %s by %q: %w", r.ID, r.Status, r.ProviderRefund, ErrMismatch)
	case r.Status == RefundStatusSucceeded || r.ReversalVersion > 0:
		return nil, nil
	}
	return nil, fmt.Errorf("succeed a refund that is %s: %w", r.Status, ErrFinished)
}

// FailRefund records that the provider did not return the money, and will not under this
// refund.
type FailRefund RefundFailed

func (f FailRefund) decide(c Charge) ([]Event, error) {
	r, requested := c.Refund(f.RefundID)
	switch {
	case !requested:
		return nil, ErrNoRefund
	case r.Status == RefundStatusPending && c.isUsed(f.ProviderRefund):
		return nil, fmt.Errorf("%s failed another refund than %s: %w", f.ProviderRefund, r.ID, ErrMismatch)
	case r.Status == RefundStatusPending:
		return []Event{RefundFailed(f)}, nil
	case r.Status == RefundStatusFailed:
		return nil, nil
	}
	return nil, fmt.Errorf("fail a refund that is %s: %w", r.Status, ErrFinished)
}

// ReverseRefund records that a refund failed at the provider after it had succeeded.
type ReverseRefund struct {
	RefundID       string
	ProviderRefund string
	Message        string
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
