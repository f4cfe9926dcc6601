package sandbox

import (
	"cmp"
	"maps"
	"net/http"
	"strings"
)

const (
	statusRequiresMethod       = "requires_payment_method"
	statusRequiresConfirmation = "requires_confirmation"
	statusRequiresAction       = "requires_action"
	statusProcessing           = "processing"
	statusSucceeded            = "succeeded"
	statusFailed               = "failed"
	statusCanceled             = "canceled"
)

// createIntent creates an intent and, with confirm=true, attempts it at once. The header Payonce-Charge names
// the charge for GET /books alone.
func (s *Sandbox) createIntent(c *call) any {
	p, status := c.params, statusRequiresMethod
	amount, currency := p.number("amount"), strings.ToLower(p.Get("currency"))
	method, customer, confirm := p.Get("payment_method"), p.Get("customer"), p.Get("confirm") == "true"
	switch refused := cmp.Or(chargeable(amount, currency), s.books.usable(method, customer)); {
	case refused != nil:
		return refused
	case method != "":
		status = statusRequiresConfirmation
	case confirm:
		return missing("payment_method")
	}
	i := s.newObject("payment_intent", "pi_", object{
		"amount": amount, "currency": currency, "customer": customer, "description": p.Get("description"),
		"metadata": p.metadata(), "payment_method": method, "status": status, "_charge": c.Header.Get("Payonce-Charge"),
	})
	i["client_secret"] = i.text("id") + "_secret_" + strings.TrimPrefix(i.text("id"), "pi_")
	c.put(i)
	s.emit(c, "payment_intent.created", i)
	if confirm {
		return s.attempt(c, i)
	}
	return i
}

// chargeable refuses an amount that Stripe does not charge.
func chargeable(amount int64, currency string) *refusal {
	if least := stripe.Minimums[currency]; amount < least {
		return invalid("amount_too_small", "amount", "Amount must be at least %d in the smallest unit of %s.", least, currency)
	}
	return divisible(amount, currency)
}

// divisible refuses an amount of which Stripe wants the last digits to be 0.
func divisible(amount int64, currency string) *refusal {
	if step := cmp.Or(stripe.Increments[currency], 1); amount%step != 0 {
		return invalid("", "amount", "Amount in %s must be evenly divisible by %d.", currency, step)
	}
	return nil
}

// confirmIntent attempts an intent. A declined intent has lost its payment method
// and can be attempted again only with another.
func (s *Sandbox) confirmIntent(c *call, i object) any {
	method := cmp.Or(c.params.Get("payment_method"), i.text("payment_method"))
	switch i["status"] {
	case statusProcessing, statusSucceeded, statusCanceled:
		return unexpected(i, "confirm")
	}
	if method == "" {
		return unexpected(i, "confirm without a payment_method")
	}
	if refused := s.books.usable(method, i.text("customer")); refused != nil {
		refused.object["payment_intent"] = i.shown()
		return refused
	}
	i["payment_method"] = method
	return s.attempt(c, i)
}

// attempt charges an intent's payment method. Each attempt is a charge
// of its own, so that a provider that captured an intent twice shows two.
func (s *Sandbox) attempt(c *call, i object) any {
	ch := s.newObject("charge", "ch_", object{
		"amount": i["amount"], "currency": i["currency"], "customer": i["customer"], "description": i["description"],
		"metadata": i["metadata"], "payment_intent": i["id"], "payment_method": i["payment_method"], "status": "pending",
	})
	i["latest_charge"], i["last_payment_error"], i["next_action"] = ch["id"], nil, nil
	o := stripe.Methods[i.text("payment_method")] // zero for a method that is no test token
	back := c.params.Get("return_url")
	if o.Code == "" || o.Status != "" && back != "" {
		if o.Status == statusRequiresAction {
			page := "http://" + c.Host + "/authenticate/" + i.text("id")
			i["next_action"] = object{"type": "redirect_to_url", "redirect_to_url": object{"url": page, "return_url": back}}
		}
		s.become(c, i, ch, cmp.Or(o.Status, statusSucceeded))
		return i
	}
	failure := refuse(http.StatusPaymentRequired, o.Code, "", "%s", o.Message)
	failure.object["decline_code"], failure.object["charge"] = o.Decline, ch["id"]
	i["last_payment_error"] = maps.Clone(failure.object)
	s.become(c, i, ch, statusRequiresMethod)
	failure.object["payment_intent"] = i.shown()
	return failure.keep()
}

// become puts what an intent and its attempt, if it had one, have become, and the event.
func (s *Sandbox) become(c *call, i, ch object, status string) {
	kind := status
	switch i["status"] = status; status {
	case statusProcessing:
		i["_settles"] = s.options.Now().Add(s.options.ProcessingTime).UnixNano()
	case statusSucceeded:
		i["amount_received"] = i["amount"]
		ch["status"], ch["paid"], ch["captured"], ch["amount_captured"] = statusSucceeded, true, true, i["amount"]
	case statusRequiresMethod:
		kind = "payment_failed"
		i["payment_method"], ch["status"] = nil, statusFailed
		if why, is := i["last_payment_error"].(object); is {
			ch["failure_code"], ch["failure_message"] = why["code"], why["message"]
		}
	}
	if ch != nil {
		c.put(ch)
	}
	c.put(i)
	s.emit(c, "payment_intent."+kind, i)
}

// cancelIntent cancels an intent: nothing can be captured by it afterwards.
func (s *Sandbox) cancelIntent(c *call, i object) any {
	switch i["status"] {
	case statusProcessing, statusSucceeded, statusCanceled:
		return unexpected(i, "cancel")
	}
	i["canceled_at"], i["next_action"] = s.options.Now().Unix(), nil
	if reason := c.params.Get("cancellation_reason"); reason != "" {
		i["cancellation_reason"] = reason
	}
	s.become(c, i, nil, statusCanceled)
	return i
}

// settle lets the intents succeed whose processing time is over. The lock is held.
func (s *Sandbox) settle() {
	c := &call{}
	for id := range s.books.waiting["payment_intent"] {
		i := s.books.get("payment_intent", id)
		if i.number("_settles") <= s.options.Now().UnixNano() {
			s.become(c, i, s.books.get("charge", i.text("latest_charge")), statusSucceeded)
		}
	}
	s.books.record(c.changed...)
}

// authenticate is /authenticate/{id}?outcome=succeeded or failed, by any method: what the customer does on the page to which
// the intent sends the customer.
func (s *Sandbox) authenticate(c *call, i object) any {
	if i["status"] != statusRequiresAction {
		return unexpected(i, "authenticate")
	}
	status := statusSucceeded
	switch outcome := c.URL.Query().Get("outcome"); outcome {
	case "succeeded":
	case "failed":
		status = statusRequiresMethod
		const message = "The provided PaymentMethod has failed authentication."
		i["last_payment_error"] = invalid("payment_intent_authentication_failure", "", message).object
	default:
		return invalid("", "outcome", "The outcome is %q: give succeeded or failed.", outcome)
	}
	i["next_action"] = nil
	s.become(c, i, s.books.get("charge", i.text("latest_charge")), status)
	return i
}
