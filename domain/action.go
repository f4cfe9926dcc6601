package domain

import "time"

// Action is what the customer has to do before the payment can continue, such as 3-D Secure.
type Action struct {
	URL       string    // where the customer does it
	ExpiresAt time.Time // the charge is canceled then, in database time
}

// PaymentActionRequired says that the provider waits for the customer. The merchant redirects
// the customer to URL; the payment continues when the provider says so, and is canceled at
// ExpiresAt.
type PaymentActionRequired struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at" detail:"expires_at"`
}

func (PaymentActionRequired) stored() string { return "payment.action_required.v1" }
func (e PaymentActionRequired) apply(c *Charge) {
	c.Status, c.Action = RequiresAction, new(Action(e))
	c.notify()
}

func (e PaymentActionRequired) allowedIn(c Charge) bool {
	return c.due(Payment) && c.Started() && c.ReturnURL != "" && c.Action == nil && e.URL != ""
}
