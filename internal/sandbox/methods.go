package sandbox

import "net/http"

// Payment methods are Stripe's test methods; each stands for what happens when
// it is charged.
const (
	methodVisa              = "pm_card_visa"
	methodDeclined          = "pm_card_chargeDeclined"
	methodInsufficientFunds = "pm_card_chargeDeclinedInsufficientFunds"
	methodAuthentication    = "pm_card_authenticationRequired"
	methodRefundFail        = "pm_card_refundFail"
	methodProcessing        = "pm_card_processing"
)

// methodObject is the payment method as errors show it.
type methodObject struct {
	ID       string `json:"id"`
	Object   string `json:"object"`
	Type     string `json:"type"`
	Livemode bool   `json:"livemode"`
}

// method reads a payment method parameter; "" when absent.
func (p *params) method(name string) string {
	value := p.text(name)
	switch value {
	case methodVisa, methodDeclined, methodInsufficientFunds, methodAuthentication, methodRefundFail, methodProcessing:
	case "":
		if _, present := p.values[name]; present {
			p.refuse(invalid("parameter_invalid_empty", name, "You passed an empty string for '"+name+"'."))
		}
	default:
		p.refuse(noSuch(http.StatusBadRequest, "PaymentMethod", name, value))
	}
	return value
}

// charged is the status that an attempt on method leads to, and the card error
// if it is declined. unattended says that the customer is not there to
// authenticate.
func charged(method string, unattended bool) (string, *apiError) {
	switch method {
	case methodDeclined:
		return statusRequiresMethod, declined(method, "card_declined", "generic_decline", "Your card was declined.")
	case methodInsufficientFunds:
		return statusRequiresMethod, declined(method, "card_declined", "insufficient_funds", "Your card has insufficient funds.")
	case methodAuthentication:
		if unattended {
			return statusRequiresMethod, declined(method, "authentication_required", "authentication_required",
				"Your card was declined. This transaction requires authentication.")
		}
		return statusRequiresAction, nil
	case methodProcessing:
		return statusProcessing, nil
	default:
		return statusSucceeded, nil
	}
}

func declined(method, code, declineCode, message string) *apiError {
	return &apiError{
		Type: typeCard, Code: code, DeclineCode: declineCode, Message: message,
		PaymentMethod: &methodObject{ID: method, Object: "payment_method", Type: "card"},
		status:        http.StatusPaymentRequired,
	}
}
