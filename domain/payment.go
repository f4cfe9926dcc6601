package domain

import (
	"fmt"
	"time"
)

// Payment is the step that takes the money. It is the last one.
const Payment = "payment"

var payment = Step{Name: Payment, Events: []EventType{
	{Name: "payment.started.v1", Zero: PaymentStarted{}},
	{Name: "payment.attempt_failed.v1", Zero: PaymentAttemptFailed{}},
	{Name: "payment.captured.v1", Zero: PaymentCaptured{}},
	{Name: "payment.declined.v1", Zero: PaymentDeclined{}},
	{Name: "payment.action_required.v1", Webhook: "charge.requires_action", Zero: PaymentActionRequired{}},
}}

// The reasons for which the step fails.
const (
	CardDeclined           FailureCode = "card_declined"
	AuthenticationRequired FailureCode = "authentication_required"
	ProviderRefused        FailureCode = "provider_refused"
)

// Stage is the provider call of a payment attempt.
type Stage string

// The stages of a payment.
const (
	StageCreate  Stage = "create"
	StageConfirm Stage = "confirm"
)

// MaxKeys is how many Idempotency-Keys the creation of a payment, its confirmation, or a refund may
// use. Each key that fails is an event, and every read of a charge reads its stream: at this bound the
// events of a charge with MaxRefunds refunds have some 0.5 MB. The last key is repeated until the
// provider forgets what it saved under it, after 24 hours at Stripe.
const MaxKeys = 50

// PaymentStarted names the provider's object of the payment.
type PaymentStarted struct {
	Provider      string `json:"provider" detail:"provider"`
	PaymentIntent string `json:"payment_intent" detail:"payment_intent"`
}

func (e PaymentStarted) apply(c *Charge) {
	c.PaymentIntent, c.AttemptVersion = e.PaymentIntent, c.Version
}

func (e PaymentStarted) allowedIn(c Charge) bool {
	return c.due(Payment) && !c.PaymentStarted() && e.PaymentIntent != ""
}

// PaymentAttemptFailed says that the Idempotency-Key of a call is used up: the provider saved an error of its own under
// the key (a 500, or a 5xx that it repeats), or the key belongs to a request with other parameters (400), as a program
// of another version sends it. The next call has another key, up to MaxKeys.
type PaymentAttemptFailed struct {
	Stage      Stage  `json:"stage" detail:"stage"`
	StatusCode int    `json:"status_code" detail:"provider_status"`
	RequestID  string `json:"request_id,omitempty" detail:"provider_request"`
}

func (e PaymentAttemptFailed) apply(c *Charge) {
	c.AttemptVersion = c.Version
	*c.failures(e.Stage)++
}

func (e PaymentAttemptFailed) allowedIn(c Charge) bool {
	return c.due(Payment) && !c.IsLastKey(e.Stage)
}

// PaymentActionRequired says that the provider waits for the customer, such as for 3-D Secure. The merchant redirects
// the customer to URL; the payment continues when the provider says so, and is canceled at ExpiresAt, in database time.
type PaymentActionRequired struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at" detail:"expires_at"`
}

func (e PaymentActionRequired) apply(c *Charge) {
	c.Status, c.Action = RequiresAction, &e
	c.oweWebhook()
}

func (e PaymentActionRequired) allowedIn(c Charge) bool {
	return c.due(Payment) && c.PaymentStarted() && c.ReturnURL != "" && c.Action == nil && e.URL != ""
}

// PaymentCaptured says that the provider took the money. A charge is captured while its payment is due, by the recorded
// intent, and for its own amount, currency and fee.
type PaymentCaptured struct {
	Provider      string   `json:"provider" detail:"provider"`
	PaymentIntent string   `json:"payment_intent" detail:"payment_intent"`
	Amount        int64    `json:"amount" detail:"amount"`
	Currency      Currency `json:"currency" detail:"currency"`
	Fee           int64    `json:"fee" detail:"fee"`
}

func (PaymentCaptured) apply(c *Charge) { c.setStep(Payment, StepDone) }
func (e PaymentCaptured) allowedIn(c Charge) bool {
	return c.due(Payment) && c.PaymentStarted() && e.PaymentIntent == c.PaymentIntent &&
		e.Amount == c.Amount && e.Currency == c.Currency && e.Fee == c.Fee
}

// PaymentDeclined says that the provider did not take the money and never will: it declined, or payonce canceled the
// payment intent, on request or at the deadline. At the provider the payment intent, if there is one, is canceled.
type PaymentDeclined struct{ Failure }

func (PaymentDeclined) apply(c *Charge)           { c.setStep(Payment, StepFailed) }
func (e PaymentDeclined) allowedIn(c Charge) bool { return c.due(Payment) && c.mayFailFor(e.Code) }

// CreationKey is the Idempotency-Key of the next creation of the payment at the provider. As Reference
// does, it follows from the client's key, so each database comes to the same keys.
func (c Charge) CreationKey() string { return fmt.Sprintf("%s-%d", c.Reference, c.CreateFailures) }

// IsLastKey reports whether the calls of a stage have come to their last key (MaxKeys).
func (c Charge) IsLastKey(s Stage) bool { return *c.failures(s) >= MaxKeys-1 }

func (c *Charge) failures(s Stage) *int {
	if s == StageCreate {
		return &c.CreateFailures
	}
	return &c.ConfirmFailures
}

// Capture returns the events of money taken, none if recorded. Append refuses another intent or amount.
func (c Charge) Capture(intent string, taken Money) []Event {
	if c.StepStatus(Payment) == StepDone && intent == c.PaymentIntent && taken == c.Money {
		return nil
	}
	return []Event{
		PaymentCaptured{Provider: Provider, PaymentIntent: intent, Amount: taken.Amount, Currency: taken.Currency, Fee: c.Fee},
		ChargeSucceeded{},
	}
}
