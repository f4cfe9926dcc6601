package domain

import (
	"slices"
	"time"
)

// A charge fails because a step failed, or because it is canceled: on request, or at a deadline. The step that
// fails records its event, the done steps before it return what they hold, the last one first, and ChargeFailed ends
// the charge, all in one commit (Fail, RejectInventory).

// Failure is why a charge failed.
type Failure struct {
	Code        FailureCode `json:"code" detail:"code"`
	Message     string      `json:"message" detail:"message"`
	DeclineCode string      `json:"decline_code,omitempty" detail:"decline_code"`
}

// FailureCode is the reason in one word. Each step has its own.
type FailureCode string

// The reasons of cancellations.
const (
	Canceled              FailureCode = "canceled"               // by the merchant
	Expired               FailureCode = "expired"                // expires_at of the request
	AuthenticationTimeout FailureCode = "authentication_timeout" // of the customer
)

// cancellations are the messages of cancellations: failures of charges that were stopped from outside of their steps.
var cancellations = map[FailureCode]string{
	Canceled:              "the charge was canceled",
	Expired:               "the charge was not captured before it expired",
	AuthenticationTimeout: "the customer did not authenticate in time",
}

// Deadlines maps each reason to cancel the charge to the database time from which it holds, the zero
// time for a request. A wait of fulfillment ends at the next one (processingWait).
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

// Cancellation returns why the charge is to be canceled now unless it is captured first; nil if it may
// continue. Fulfillment's dueStep asks.
func (c Charge) Cancellation(now time.Time) *Failure {
	deadlines := c.Deadlines()
	for _, code := range []FailureCode{Canceled, Expired, AuthenticationTimeout} {
		if at, has := deadlines[code]; has && !now.Before(at) {
			return &Failure{Code: code, Message: cancellations[code]}
		}
	}
	return nil
}

// cancels reports whether it is the reason of a cancellation, and not of a step that failed.
func (code FailureCode) cancels() bool { return cancellations[code] != "" }

// mayFailFor reports whether a charge may fail for a reason: always for a step's, for a cancellation's if it is in Deadlines, due or not.
func (c Charge) mayFailFor(code FailureCode) bool {
	_, has := c.Deadlines()[code]
	return has || !code.cancels()
}

// Fail returns the events that end a charge without money: payment.declined, unless it is canceled
// before payment.started; compensations; charge.failed. None if it has failed. Cancel its intent before.
func (c Charge) Fail(why Failure) []Event {
	if c.PaymentStarted() || !why.Code.cancels() {
		return c.endFailed(why, PaymentDeclined{why})
	}
	return c.endFailed(why) // canceled before payment.started
}

// ChargeFailed ends the charge without money taken.
type ChargeFailed struct{ Failure }

func (e ChargeFailed) apply(c *Charge) {
	c.Failure = &e.Failure
	for _, s := range steps { // subscribers follow a failure too
		if c.StepStatus(s.Name) == StepPending {
			c.setStep(s.Name, StepSkipped)
		}
	}
	c.end(Failed)
}

func (e ChargeFailed) allowedIn(c Charge) bool {
	return !c.HasOutcome() && len(c.toCompensate()) == 0 && c.mayFailFor(e.Code) &&
		(c.stepFailed() || !c.PaymentStarted() && e.Code.cancels())
}

// toCompensate are the done steps that hold something, the last one first.
func (c Charge) toCompensate() []Step {
	var held []Step
	for _, s := range slices.Backward(c.Steps) {
		if step, _ := stepNamed(s.Name); s.Status == StepDone && step.release != nil {
			held = append(held, step)
		}
	}
	return held
}

// mayRelease reports whether what a step holds may be returned now: it is the last step that holds something. Besides,
// a step failed; or no payment was started, and there is a reason to cancel, due or not.
func (c Charge) mayRelease(name string) bool {
	held := c.toCompensate()
	return len(held) > 0 && held[0].Name == name && (c.stepFailed() || !c.PaymentStarted() && len(c.Deadlines()) > 0)
}

// endFailed returns the events that end a charge without money taken: those of the step that failed, if
// one did, then the release of what the steps before it hold, then ChargeFailed. None if the charge has failed.
func (c Charge) endFailed(why Failure, events ...Event) []Event {
	if c.Status == Failed {
		return nil
	}
	for _, s := range c.toCompensate() {
		events = append(events, s.release(c))
	}
	return append(events, ChargeFailed{why})
}

func (c Charge) stepFailed() bool {
	return slices.ContainsFunc(c.Steps, func(s StepState) bool { return s.Status == StepFailed })
}
