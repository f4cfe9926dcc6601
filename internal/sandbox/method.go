package sandbox

import "strings"

// outcome is what an attempt comes to: a status, or the code, the decline code and the
// message of a card error. With both, the customer can act: the status is that of a request with a return_url.
type outcome struct{ status, code, declineCode, message string }

const methodRefundFail = "pm_card_refundFail" // its capture succeeds, and its refund fails

// methods are Stripe's test payment methods, each with its outcome.
var methods = map[string]outcome{
	"pm_card_visa":                            {status: statusSucceeded},
	methodRefundFail:                          {status: statusSucceeded},
	"pm_card_processing":                      {status: statusProcessing},
	"pm_card_chargeDeclined":                  {"", "card_declined", "generic_decline", "Your card was declined."},
	"pm_card_chargeDeclinedInsufficientFunds": {"", "card_declined", "insufficient_funds", "Your card has insufficient funds."},
	"pm_card_authenticationRequired": {
		statusRequiresAction, "authentication_required", "authentication_required", "Your card was declined. This transaction requires authentication.",
	},
	"pm_card_liveCard": {
		"", "card_declined", "test_mode_live_card",
		"Your card was declined. Your request was in test mode, but used a non test card.",
	},
}

// What payment methods begin with that are no test tokens. pm_saved_NAME is attached to the
// customer cus_NAME, and pm_once_NAME to none.
const (
	savedMethod = "pm_saved_"
	onceMethod  = "pm_once_"
	anyCustomer = "cus_"
)

// outcomeOf returns what an attempt with a payment method comes to, if there is such a one. Those
// that are no test tokens succeed.
func outcomeOf(method string) (o outcome, known bool) {
	if strings.HasPrefix(method, savedMethod) || strings.HasPrefix(method, onceMethod) {
		return outcome{status: statusSucceeded}, true
	}
	o, known = methods[method]
	return o, known
}

// usable returns Stripe's refusal of a payment method that is attached to another customer than
// the intent's, or that is attached to none and was attempted; nil if it may be attempted. A test token
// stands for a new payment method at each use.
func (b *books) usable(method, customer string) *refusal {
	const param = "payment_method"
	name, saved := strings.CutPrefix(method, savedMethod)
	switch owner := anyCustomer + name; {
	case saved && customer == "":
		return invalid("parameter_missing", param, "The `payment_method` parameter supplied %s belongs to the Customer %s. "+
			"Please include the Customer in the `customer` parameter on the PaymentIntent.", method, owner)
	case saved && customer != owner:
		return invalid("", param, "The PaymentMethod %s does not belong to the Customer you supplied %s. "+
			"Please use this PaymentMethod with the Customer that it belongs to instead.", method, customer)
	case !strings.HasPrefix(method, onceMethod):
		return nil
	}
	if b.find("charge", func(ch object) bool { return ch["payment_method"] == method }) != nil {
		return invalid("", param, "The provided PaymentMethod was previously used with a PaymentIntent without Customer attachment, "+
			"shared with a connected account without Customer attachment, or was detached from a Customer. It may not be used again. "+
			"To use a PaymentMethod multiple times, you must attach it to a Customer first.")
	}
	return nil
}
