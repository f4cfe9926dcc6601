package domain

import "time"

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

// Cancellation returns why the charge is to be canceled now unless it is captured first: on request,
// or because a deadline has passed. It is nil if the charge may continue.
func (c Charge) Cancellation(now time.Time) *Failure {
	deadlines := c.Deadlines()
	for _, code := range []FailureCode{Canceled, Expired, AuthenticationTimeout} {
		at, has := deadlines[code]
		if code == Canceled && c.CancelRequested || has && !now.Before(at) {
			return &Failure{Code: code, Message: cancellations[code]}
		}
	}
	return nil
}

// mayFailFor reports whether a charge may fail for a reason: as canceled only if the
// merchant asked for it, and for a deadline only if it has one.
func (c Charge) mayFailFor(code FailureCode) bool {
	_, has := c.Deadlines()[code]
	return cancellations[code] == "" || has || code == Canceled && c.CancelRequested
}
