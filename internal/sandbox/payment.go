package sandbox

import (
	"cmp"
	"net/http"
	"net/url"
)

// createIntent creates an intent and, with confirm=true, attempts it at once.
func (s *Sandbox) createIntent(c *call, to *change) (answer, error) {
	p := c.params
	i := &intent{ID: newID("pi_"), Status: statusRequiresMethod, Created: s.options.Now().Unix(), ChargeID: c.charge}
	i.Amount = p.amount("amount")
	i.Currency = p.currency("currency")
	i.Metadata = p.metadata()
	i.Customer = p.customer()
	method, description := p.method("payment_method"), p.text("description")
	confirm := p.boolean("confirm")
	unattended := p.unattended()
	p.word("capture_method", "automatic", "automatic_async")
	p.word("confirmation_method", "automatic")
	returnURL := p.returnURL()
	p.ignore("automatic_payment_methods", "payment_method_types", "use_stripe_sdk")
	switch refusal := cmp.Or(tooSmall(i.Amount, i.Currency), indivisible(i.Amount, i.Currency), s.books.unusable(method, i.Customer)); {
	case i.Amount == 0:
		p.refuse(missing("amount"))
	case confirm && method == "":
		p.refuse(missing("payment_method"))
	case refusal != nil:
		p.refuse(refusal)
	case (unattended || returnURL != "") && !confirm:
		p.refuse(invalid("", "off_session", "off_session, error_on_requires_action and return_url need confirm=true."))
	}
	if err := p.done(); err != nil {
		return answer{}, err
	}
	if method != "" {
		i.Status, i.PaymentMethod = statusRequiresConfirmation, &method
	}
	if description != "" {
		i.Description = &description
	}
	to.put(i)
	s.emit(to, c, "payment_intent.created", i)
	if confirm {
		return s.attempt(to, c, i, unattended, returnURL), nil
	}
	return object(http.StatusOK, i), nil
}

// unattended reads the parameters that say that the customer is absent.
func (p *params) unattended() bool {
	offSession := p.word("off_session", "false", "true", "one_off", "recurring") != "false"
	return p.boolean("error_on_requires_action") || offSession
}

// returnURL reads where the customer goes after an action.
func (p *params) returnURL() string {
	value := p.text("return_url")
	if to, err := url.Parse(value); value != "" && (err != nil || to.Host == "" || to.Scheme != "https" && to.Scheme != "http") {
		p.refuse(invalid("url_invalid", "return_url", "Not a valid URL"))
	}
	return value
}

// confirmIntent attempts an intent. A declined intent has lost its payment method
// and can be attempted again only with another.
func (s *Sandbox) confirmIntent(c *call, to *change) (answer, error) {
	p := c.params
	method := p.method("payment_method")
	unattended := p.unattended()
	returnURL := p.returnURL()
	p.ignore("use_stripe_sdk")
	if err := p.done(); err != nil {
		return answer{}, err
	}
	i, err := s.books.intentAt(c.target, noIntentAt(c.target))
	if err != nil {
		return answer{}, err
	}
	switch i.Status {
	case statusRequiresConfirmation, statusRequiresAction:
	case statusRequiresMethod:
		if method == "" {
			return unexpected(i, "confirm", " Give it a payment_method first."), nil
		}
	default:
		return unexpected(i, "confirm", ""), nil
	}
	if method == "" {
		method = *i.PaymentMethod
	}
	if refusal := s.books.unusable(method, i.Customer); refusal != nil {
		refusal.PaymentIntent = i
		return answer{}, refusal
	}
	i.PaymentMethod = &method
	return s.attempt(to, c, i, unattended, returnURL), nil
}

// unexpected refuses what the intent's state does not allow, and shows the intent.
func unexpected(i *intent, verb, advice string) answer {
	e := invalid("payment_intent_unexpected_state", "", "You cannot %s this PaymentIntent because it has a status of %s.%s", verb, i.Status, advice)
	e.PaymentIntent = i
	return e.answer()
}

// become adds what an intent has become to a change, with its capture and its event.
func (s *Sandbox) become(to *change, c *call, i *intent) {
	to.put(i)
	kind := i.Status
	switch i.Status {
	case statusProcessing:
		i.SettleAt = s.options.Now().Add(s.options.ProcessingTime)
	case statusSucceeded:
		to.Captures = append(to.Captures, &capture{ID: *i.LatestCharge, Intent: i.ID, Amount: i.Amount, Currency: i.Currency})
	case statusRequiresMethod:
		kind = "payment_failed"
	}
	s.emit(to, c, "payment_intent."+kind, i)
}

// attempt charges an intent's payment method and adds the consequences to a change.
func (s *Sandbox) attempt(to *change, c *call, i *intent, unattended bool, returnURL string) answer {
	charge := newID("ch_")
	status, failure := charged(*i.PaymentMethod, unattended)
	i.Status, i.LatestCharge, i.LastPaymentError, i.NextAction = status, &charge, nil, nil
	if status == statusRequiresAction {
		i.NextAction = nextAction(c, i, returnURL)
	}
	to.Used = onceOnly(*i.PaymentMethod)
	if failure != nil {
		failure.Charge = charge
		kept := *failure
		i.LastPaymentError, i.PaymentMethod = &kept, nil
	}
	s.become(to, c, i)
	if failure == nil {
		return object(http.StatusOK, i)
	}
	failure.PaymentIntent = i
	return failure.answer()
}

// cancelIntent cancels an intent: nothing can be captured by it afterwards.
func (s *Sandbox) cancelIntent(c *call, to *change) (answer, error) {
	reason := c.params.word("cancellation_reason", "", "duplicate", "fraudulent", "requested_by_customer", "abandoned")
	if err := c.params.done(); err != nil {
		return answer{}, err
	}
	i, err := s.books.intentAt(c.target, noIntentAt(c.target))
	if err != nil {
		return answer{}, err
	}
	switch i.Status {
	case statusProcessing, statusSucceeded, statusCanceled:
		return unexpected(i, "cancel", ""), nil
	}
	now := s.options.Now().Unix()
	i.Status, i.CanceledAt, i.NextAction = statusCanceled, &now, nil
	if reason != "" {
		i.CancellationReason = &reason
	}
	s.become(to, c, i)
	return object(http.StatusOK, i), nil
}

// settle lets the intents succeed whose processing time is over. The lock is held.
func (s *Sandbox) settle() error {
	to := &change{}
	for _, known := range s.books.processing {
		if i := *known; !i.SettleAt.After(s.options.Now()) {
			i.Status = statusSucceeded
			s.become(to, nil, &i)
		}
	}
	return s.record(to)
}

// outcome is what an attempt comes to: a status, or the code, the decline code and the
// message of a card error.
type outcome struct{ status, code, declineCode, message string }

// methods are Stripe's test payment methods, each with its outcome.
var methods = map[string]outcome{
	"pm_card_visa":                            {status: statusSucceeded},
	"pm_card_processing":                      {status: statusProcessing},
	"pm_card_chargeDeclined":                  {code: "card_declined", declineCode: "generic_decline", message: "Your card was declined."},
	"pm_card_chargeDeclinedInsufficientFunds": {code: "card_declined", declineCode: "insufficient_funds", message: "Your card has insufficient funds."},
	// Declined if the customer is absent.
	"pm_card_authenticationRequired": {
		statusRequiresAction, "authentication_required", "authentication_required", "Your card was declined. This transaction requires authentication.",
	},
	methodRefundFail: {status: statusSucceeded},
	"pm_card_liveCard": {
		code: "card_declined", declineCode: "test_mode_live_card",
		message: "Your card was declined. Your request was in test mode, but used a non test card.",
	},
}

const methodOfLiveMode = "pm_liveMode" // it exists, but not for a test key

const methodRefundFail = "pm_card_refundFail" // its capture succeeds, and its refund fails

// method reads a payment method parameter; "" when absent.
func (p *params) method(name string) string {
	value := p.text(name)
	if _, known := outcomeOf(value); !known && value != "" {
		refusal := noSuch(http.StatusBadRequest, "PaymentMethod", name, value)
		if value == methodOfLiveMode {
			refusal.Message += "; a similar object exists in live mode, but a test mode key was used to make this request."
		}
		p.refuse(refusal)
	} else if value == "" && p.values.Has(name) {
		p.refuse(invalid("parameter_invalid_empty", name, "You passed an empty string for '%s'.", name))
	}
	return value
}

// charged returns the status that an attempt on method leads to, and the card error
// if it is declined. unattended means that the customer is absent.
func charged(method string, unattended bool) (string, *apiError) {
	o, _ := outcomeOf(method)
	if o.code == "" || o.status != "" && !unattended {
		return o.status, nil
	}
	e := newError(http.StatusPaymentRequired, typeCard, o.code, "%s", o.message)
	e.DeclineCode = o.declineCode
	e.PaymentMethod = members{
		"id": method, "object": "payment_method", "type": "card", "card": card(), "billing_details": noBilling(),
		"created": 0, "customer": nil, "customer_account": nil, "livemode": false, "metadata": struct{}{},
	}
	return statusRequiresMethod, e
}
