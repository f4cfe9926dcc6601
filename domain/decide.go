package domain

import (
	"errors"
	"fmt"
	"slices"
)

// Refusals of Decide. Each is final for the command as it is.
var (
	// ErrNoCharge refuses a command for a stream that has no event yet.
	ErrNoCharge = errors.New("the charge does not exist")
	// ErrFinished refuses a command that came after the outcome and contradicts it.
	ErrFinished = errors.New("the charge has come to its outcome")
	// ErrOutOfOrder refuses a command of a step that is not due.
	ErrOutOfOrder = errors.New("the step is not due")
	// ErrMismatch refuses a capture of another amount, currency or payment intent than
	// the charge's own, and a dispute or a movement whose money is no part of the charge.
	ErrMismatch = errors.New("the provider's object is not the charge's")
	// ErrInvalid refuses a request whose values no charge can have.
	ErrInvalid = errors.New("the request is not valid")
)

// Command asks for a change of a charge. The set is sealed.
type Command interface {
	decide(c Charge) ([]Event, error)
}

// Decide returns the events that cmd causes to c: none if it has happened already, or a
// refusal that wraps one of the sentinels. It changes nothing.
func Decide(c Charge, cmd Command) ([]Event, error) {
	if _, opens := cmd.(RequestCharge); !opens && !c.Exists() {
		return nil, ErrNoCharge
	}
	return cmd.decide(c)
}

// RequestCharge opens a charge. Its steps are those of this program, whatever it says.
type RequestCharge ChargeRequested

func (r RequestCharge) decide(c Charge) ([]Event, error) {
	if c.Exists() {
		return nil, nil
	}
	event := ChargeRequested(r).frozen(slices.Concat(steps, subscribers))
	if !event.allowedIn(c) {
		return nil, fmt.Errorf("amount %d, fee %d: %w", r.Amount, r.Fee, ErrInvalid)
	}
	seen := make(map[string]bool, len(r.Items))
	for _, item := range r.Items {
		if item.Quantity < 1 || seen[item.SKU] {
			return nil, fmt.Errorf("item %q: %w", item.SKU, ErrInvalid)
		}
		seen[item.SKU] = true
	}
	return []Event{event}, nil
}

// CancelCharge asks to cancel a charge that has no outcome yet.
type CancelCharge struct{}

func (CancelCharge) decide(c Charge) ([]Event, error) {
	switch {
	case c.Terminal():
		return nil, fmt.Errorf("cancel a charge that is %s: %w", c.Status, ErrFinished)
	case c.CancelRequested:
		return nil, nil
	}
	return []Event{ChargeCancelRequested{}}, nil
}
