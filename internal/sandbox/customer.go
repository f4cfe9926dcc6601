package sandbox

import (
	"net/http"
	"strings"
)

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
	for _, begin := range []string{savedMethod, onceMethod} {
		if name, is := strings.CutPrefix(method, begin); is && name != "" {
			return outcome{status: statusSucceeded}, true
		}
	}
	o, known = methods[method]
	return o, known
}

// customer reads the customer parameter; nil when absent. Every cus_NAME is a customer.
func (p *params) customer() *string {
	const name = "customer"
	value := p.text(name)
	switch {
	case !p.values.Has(name):
		return nil
	case value == "":
		p.refuse(invalid("parameter_invalid_empty", name, "You passed an empty string for '%s'.", name))
	case !strings.HasPrefix(value, anyCustomer):
		p.refuse(noSuch(http.StatusBadRequest, name, name, value))
	}
	return &value
}

// unusable returns Stripe's refusal of a payment method that is attached to another customer than
// the intent's, or that is attached to none and was used; nil if it may be attempted. A test token
// stands for a new payment method at each use.
func (b *books) unusable(method string, customer *string) *apiError {
	const param = "payment_method"
	name, saved := strings.CutPrefix(method, savedMethod)
	switch owner := anyCustomer + name; {
	case saved && customer == nil:
		return invalid("parameter_missing", param, "The `payment_method` parameter supplied %s belongs to the Customer %s. "+
			"Please include the Customer in the `customer` parameter on the PaymentIntent.", method, owner)
	case saved && *customer != owner:
		return invalid("", param, "The PaymentMethod %s does not belong to the Customer you supplied %s. "+
			"Please use this PaymentMethod with the Customer that it belongs to instead.", method, *customer)
	case b.used[method]:
		return invalid("", param, "The provided PaymentMethod was previously used with a PaymentIntent without Customer attachment, "+
			"shared with a connected account without Customer attachment, or was detached from a Customer. It may not be used again. "+
			"To use a PaymentMethod multiple times, you must attach it to a Customer first.")
	}
	return nil
}

// onceOnly returns a payment method that its first attempt uses up, "" for any other.
func onceOnly(method string) string {
	if strings.HasPrefix(method, onceMethod) {
		return method
	}
	return ""
}
