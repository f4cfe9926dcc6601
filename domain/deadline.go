package domain

import (
	"fmt"
	"time"
)

// The reasons of charges that were not captured in time.
const (
	Expired               FailureCode = "expired"                // expires_at of the request
	AuthenticationTimeout FailureCode = "authentication_timeout" // of the customer
)

// cancellations are the failures of charges that were stopped from outside of their steps.
var cancellations = map[FailureCode]string{
	Canceled:              "the charge was canceled",
	Expired:               "the charge was not captured before it expired",
	AuthenticationTimeout: "the customer did not authenticate in time",
}

// Deadlines are the times, in database time, after which the charge is canceled unless it is
// captured first: the one of its request, and the one of the customer's action.
func (c Charge) Deadlines() map[FailureCode]time.Time {
	deadlines := map[FailureCode]time.Time{}
	if !c.ExpiresAt.IsZero() {
		deadlines[Expired] = c.ExpiresAt
	}
	if c.Action != nil {
		deadlines[AuthenticationTimeout] = c.Action.ExpiresAt
	}
	return deadlines
}

// CancelDue is why the charge is to be canceled now unless it is captured first: on request,
// or because a deadline has passed. It is empty if the charge may continue.
func (c Charge) CancelDue(now time.Time) FailureCode {
	if c.CancelRequested {
		return Canceled
	}
	deadlines := c.Deadlines()
	for _, why := range []FailureCode{Expired, AuthenticationTimeout} {
		if at, ok := deadlines[why]; ok && !now.Before(at) {
			return why
		}
	}
	return ""
}

// mayFailFor reports whether a charge may fail for a reason: as canceled only if the
// merchant asked for it, and for a deadline only if it has one.
func (c Charge) mayFailFor(code FailureCode) bool {
	_, has := c.Deadlines()[code]
	return cancellations[code] == "" || has || code == Canceled && c.CancelRequested
}

// canceledUnpaid reports whether the charge may be canceled before there was anything to pay.
func (c Charge) canceledUnpaid() bool {
	return !c.Started() && (c.CancelRequested || !c.ExpiresAt.IsZero())
}

// FailCanceled ends a charge whose cancellation is due, and compensates. The payment intent,
// if there is one, must be canceled at the provider before.
type FailCanceled struct {
	Now time.Time // in database time
}

func (f FailCanceled) decide(c Charge) ([]Event, error) {
	code := c.CancelDue(f.Now)
	switch {
	case c.Status == Failed:
		return nil, nil
	case c.StepStatus(Payment) == StepDone:
		return nil, fmt.Errorf("cancel a charge that is captured: %w", ErrFinished)
	case code == "":
		return nil, fmt.Errorf("cancel a charge without a request to cancel: %w", ErrOutOfOrder)
	}
	why := Failure{Code: code, Message: cancellations[code]}
	if c.Started() {
		return c.fail(why, PaymentDeclined{why}), nil
	}
	return c.fail(why), nil
}
