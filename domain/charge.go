package domain

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Status is the state of a charge, as merchants see it.
type Status string

// The states of a charge.
const (
	Pending           Status = "pending"
	RequiresAction    Status = "requires_action" // of the customer
	Succeeded         Status = "succeeded"       // captured
	Failed            Status = "failed"
	PartiallyRefunded Status = "partially_refunded"
	Refunded          Status = "refunded"
)

// Charge is the fold of a stream: all that decisions read beside the time. Zero, it is a stream without events.
type Charge struct {
	Terms

	ID string

	Status  Status
	Failure *Failure
	Action  *PaymentActionRequired // what the customer has to do; nil otherwise
	Steps   []StepState            // in their order, the subscribers last; their names are frozen in the first event

	PaymentIntent   string // the provider's object; empty until the payment started
	CancelRequested bool   // the merchant wants the charge canceled unless it is captured first

	// CreateFailures and ConfirmFailures are how many Idempotency-Keys were used up: by failed creations
	// of the payment intent, and by failed confirmations.
	CreateFailures, ConfirmFailures int

	Refunds    []Refund  // in the order in which they were requested
	Disputes   []Dispute // in the order in which they were observed
	Unnotified []int     // versions of webhook events of which the merchant wants a webhook and has none

	Version        int // the number of events folded
	OutcomeVersion int // of the event that is its outcome, 0 before it

	// AttemptVersion is that of the newest payment.started or payment.attempt_failed, 0 before. That event's id is
	// the Idempotency-Key of a confirmation, so also after a crash or a time-out the key is the same, until the
	// next payment.attempt_failed.
	AttemptVersion int
}

// HasOutcome reports whether the charge succeeded or failed.
func (c Charge) HasOutcome() bool { return c.OutcomeVersion > 0 }

// captured reports whether the outcome of the charge is that its money was taken.
func (c Charge) captured() bool { return c.HasOutcome() && c.Status != Failed }

// PaymentStarted reports whether the id of the payment intent is recorded.
func (c Charge) PaymentStarted() bool { return c.PaymentIntent != "" }

// NeedsWebhook reports whether the merchant has yet to receive the webhook about the event at a version.
func (c Charge) NeedsWebhook(version int) bool { return slices.Contains(c.Unnotified, version) }

// Fold folds stored events, and never fails: they have happened. A void request (Voids) changes the
// version alone. The argument is not changed.
func Fold(c Charge, events ...Event) Charge {
	c = c.clone()
	for _, e := range events {
		void := c.Voids(e)
		c.Version++
		if !void {
			e.apply(&c)
		}
	}
	return c
}

// ErrIllegal is returned by Append, wrapped.
var ErrIllegal = errors.New("illegal event")

// Append folds events that are to be stored, and alone says what is legal: it stops before the first event
// that the charge does not allow, or whose type is in no list, with ErrIllegal. The argument is not changed.
func (c Charge) Append(events ...Event) (Charge, error) {
	c = c.clone()
	for _, e := range events {
		if TypeOf(e) == "" { // it would be stored without a name, and no program could read the charge
			return c, fmt.Errorf("%w: %T is in no list of event types", ErrIllegal, e)
		}
		if !c.allows(e) {
			return c, fmt.Errorf("%w: %s at version %d", ErrIllegal, TypeOf(e), c.Version+1)
		}
		c.Version++
		e.apply(&c)
	}
	return c, nil
}

// clone returns the charge with slices of its own.
func (c Charge) clone() Charge {
	c.Steps, c.Unnotified = slices.Clone(c.Steps), slices.Clone(c.Unnotified)
	c.Refunds, c.Disputes = slices.Clone(c.Refunds), slices.Clone(c.Disputes)
	return c
}

// Voids reports whether e, as the next event of c, is a void request: one that the charge does not allow, or whose data
// cannot be read (Unreadable). A void request has neither an effect nor postings, and does not stop the charge. A void
// first event leaves a charge without merchant and steps: its message becomes a dead letter, and lists leave it out.
//
// Append writes none. Only a stolen login of the api can, as far as the policies and the trigger of ledger_events
// in migrations/service.sql let it: change them with allowedIn. The audit names each.
func (c Charge) Voids(e Event) bool { return byName[TypeOf(e)].Request && !c.allows(e) }

// allows reports whether e may be the next event of c.
func (c Charge) allows(e Event) bool {
	_, opens := e.(ChargeRequested)
	return opens == (c.Version == 0) && e.allowedIn(c)
}

// oweWebhook records that the merchant, if it wants webhooks, has yet to receive the one about the present
// version. A refund has a flag of its own (Refund.Notify).
func (c *Charge) oweWebhook() {
	if c.Notify {
		c.Unnotified = append(c.Unnotified, c.Version)
	}
}

func (c *Charge) end(status Status) {
	c.Status, c.OutcomeVersion, c.Action = status, c.Version, nil
	c.oweWebhook()
}

var chargeEvents = []EventType{
	{Name: "charge.requested.v1", Request: true, Zero: ChargeRequested{}},
	{Name: "charge.cancel_requested.v1", Request: true, Zero: ChargeCancelRequested{}},
	{Name: "charge.succeeded.v1", Webhook: "charge.succeeded", Zero: ChargeSucceeded{}},
	{Name: "charge.failed.v1", Webhook: "charge.failed", Zero: ChargeFailed{}},
}

// Terms are what a charge is about. They are frozen in its first event, so that no later change of the
// merchant's settings changes a charge.
type Terms struct {
	MerchantID string `json:"merchant_id"`
	OrderID    string `json:"order_id" detail:"order_id"`
	Money
	Fee           int64             `json:"fee" detail:"fee"` // in minor units
	PaymentMethod string            `json:"payment_method" detail:"payment_method"`
	Customer      string            `json:"customer,omitempty" detail:"customer"` // the provider's, to whom PaymentMethod is attached
	Items         []Item            `json:"items,omitempty" detail:"items"`
	Description   string            `json:"description,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`

	// ReturnURL is where the provider sends the customer after an action; empty if the charge waits for no customer.
	// ExpiresAt is when the charge is canceled unless it is captured first; zero for never.
	ReturnURL string    `json:"return_url,omitempty"`
	ExpiresAt time.Time `json:"expires_at,omitzero" detail:"expires_at"`

	// Notify: the merchant wants webhooks. OneChargePerOrder: the charge holds its order until it fails.
	Notify            bool `json:"notify" detail:"notify"`
	OneChargePerOrder bool `json:"one_charge_per_order,omitempty" detail:"one_charge_per_order"`

	// Reference is the charge's name at the provider, made of the merchant, the operation and the client's key:
	// a repeated key has the same one, even in a database that has lost the charge (payment.start in fulfillment).
	Reference string `json:"reference" detail:"reference"`
}

// ChargeRequested opens the stream.
type ChargeRequested struct {
	Terms

	Steps   []string `json:"steps"`
	Skipped []string `json:"skipped,omitempty"` // of Steps, those that do not apply
}

func (e ChargeRequested) apply(c *Charge) {
	c.Terms = e.Terms
	c.Status = Pending
	c.Steps = make([]StepState, len(e.Steps))
	for i, name := range e.Steps {
		c.Steps[i] = StepState{Name: name, Status: StepPending}
		if slices.Contains(e.Skipped, name) {
			c.Steps[i].Status = StepSkipped
		}
	}
}

func (e ChargeRequested) allowedIn(Charge) bool {
	seen := make(map[string]bool, len(e.Items))
	for _, item := range e.Items {
		if item.Quantity < 1 || seen[item.SKU] {
			return false
		}
		seen[item.SKU] = true
	}
	return e.Amount >= MinAmount && e.Amount <= MaxAmount && e.Fee >= 0 && e.Fee <= e.Amount && slices.Contains(e.Steps, Payment)
}

var (
	// ErrFinished refuses a cancellation that came after the outcome.
	ErrFinished = errors.New("the charge has come to its outcome")
	// ErrInvalid refuses a request whose values no charge can have.
	ErrInvalid = errors.New("the request is not valid")
	// ErrMismatch is the reason for which an object of the provider cannot be the charge's.
	ErrMismatch = errors.New("the provider's object is not the charge's")
)

// Open returns the event of a new charge, with the steps of this program, whatever r says. A step that
// a later version adds does not change existing charges. The error is ErrInvalid, wrapped.
func Open(r ChargeRequested) ([]Event, error) {
	r.Steps, r.Skipped = nil, nil
	for _, s := range slices.Concat(steps, subscribers) {
		applies := s.applies == nil || s.applies(r)
		if !applies && s.Optional {
			continue
		}
		r.Steps = append(r.Steps, s.Name)
		if !applies {
			r.Skipped = append(r.Skipped, s.Name)
		}
	}
	if !r.allowedIn(Charge{}) {
		return nil, fmt.Errorf("amount %d, fee %d, %d items: %w", r.Amount, r.Fee, len(r.Items), ErrInvalid)
	}
	return []Event{r}, nil
}

// RequestCancel returns the event of a request to cancel the charge: none while it is being canceled.
// The error is ErrFinished, wrapped.
func (c Charge) RequestCancel() ([]Event, error) {
	switch {
	case c.HasOutcome():
		return nil, fmt.Errorf("cancel a charge that is %s: %w", c.Status, ErrFinished)
	case c.CancelRequested:
		return nil, nil
	}
	return []Event{ChargeCancelRequested{}}, nil
}

// ChargeCancelRequested says that the merchant wants the charge canceled. A capture that is faster wins.
type ChargeCancelRequested struct{}

func (ChargeCancelRequested) apply(c *Charge) { c.CancelRequested = true }
func (ChargeCancelRequested) allowedIn(c Charge) bool {
	return !c.HasOutcome() && c.StepStatus(Payment) == StepPending && !c.CancelRequested
}

// ChargeSucceeded ends the charge with the money taken.
type ChargeSucceeded struct{}

func (ChargeSucceeded) apply(c *Charge) { c.end(Succeeded) }
func (ChargeSucceeded) allowedIn(c Charge) bool {
	return !c.HasOutcome() && c.StepStatus(Payment) == StepDone
}

// Item is a quantity of one article.
type Item struct {
	SKU      string `json:"sku"`
	Quantity int64  `json:"quantity"`
}
