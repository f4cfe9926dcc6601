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

// Deadlines maps each reason to cancel the charge, unless it is captured first, to the database time
// from which the reason holds. A requested cancellation holds always, as the zero time.
func (c Charge) Deadlines() map[FailureCode]time.Time {
	deadlines := map[FailureCode]time.Time{}
	if c.CancelRequested {
		deadlines[Canceled] = time.Time{}
	}
	if !c.ExpiresAt.IsZero() {
		deadlines[Expired] = c.ExpiresAt
	}
	if c.Action != nil {
		deadlines[AuthenticationTimeout] = c.Action.ExpiresAt
	}
	return deadlines
}

// Cancellation returns why the charge is to be canceled now unless it is captured first. It is nil if
// the charge may continue.
func (c Charge) Cancellation(now time.Time) *Failure {
	deadlines := c.Deadlines()
	for _, code := range []FailureCode{Canceled, Expired, AuthenticationTimeout} {
		if at, has := deadlines[code]; has && !now.Before(at) {
			return &Failure{Code: code, Message: cancellations[code]}
		}
	}
	return nil
}

// mayFailFor reports whether a charge may fail for a reason: one of cancellations must be in Deadlines.
func (c Charge) mayFailFor(code FailureCode) bool {
	_, has := c.Deadlines()[code]
	return has || cancellations[code] == ""
}
