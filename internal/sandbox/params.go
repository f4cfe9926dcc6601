package sandbox

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The parameters of calls. Those that end with ! are required; an endpoint reads the others where it wants.
const (
	ofCreation = "amount! currency! payment_method customer description metadata confirm return_url off_session error_on_requires_action " +
		"automatic_payment_methods payment_method_types capture_method confirmation_method use_stripe_sdk"
	ofConfirmation = "payment_method return_url off_session error_on_requires_action use_stripe_sdk"
	ofCancellation = "cancellation_reason"
	ofRefund       = "payment_intent! amount reason metadata"
	ofPage         = "limit starting_after"
)

// rules say what the value of a parameter may be. A parameter without a rule may have any.
var rules = map[string]func(name, value string) *refusal{
	"amount":         whole(0),
	"limit":          whole(limitMax),
	"confirm":        one("true", "false"),
	"capture_method": one("automatic", "automatic_async"),
	"currency":       currency,
	"payment_method": method,
	"customer":       customer,
}

const (
	limitDefault = 10
	limitMax     = 100
)

// whole wants an integer of 1 or more, and of most or less where most is not 0.
func whole(most int64) func(name, value string) *refusal {
	return func(name, value string) *refusal {
		if n, err := strconv.ParseInt(value, 10, 64); err != nil || n < 1 || most > 0 && n > most {
			return invalid("parameter_invalid_integer", name, "Invalid integer: %s.", value)
		}
		return nil
	}
}

func one(words ...string) func(name, value string) *refusal {
	return func(name, value string) *refusal {
		if slices.Contains(words, value) {
			return nil
		}
		return invalid("", name, "Invalid %s: must be one of %s.", name, strings.Join(words, ", "))
	}
}

func currency(name, value string) *refusal {
	if slices.Contains(strings.Fields(strings.Join(stripe.Currencies, " ")), strings.ToLower(value)) {
		return nil
	}
	return invalid("", name, "Invalid currency: %s.", value)
}

// method knows Stripe's test tokens, and what stands for methods of customers.
func method(name, value string) *refusal {
	if _, known := outcomeOf(value); known {
		return nil
	}
	return noSuch(http.StatusBadRequest, "PaymentMethod", name, value)
}

// customer knows every cus_NAME.
func customer(name, value string) *refusal {
	if strings.HasPrefix(value, anyCustomer) {
		return nil
	}
	return noSuch(http.StatusBadRequest, name, name, value)
}

// params are the form parameters of a call.
type params struct{ url.Values }

// check returns the first fault of the parameters: one that is missing, breaks its rule or is unknown.
func (p params) check(names string) *refusal {
	known := strings.Fields(strings.ReplaceAll(names, "!", ""))
	for name := range strings.FieldsSeq(names) {
		name, required := strings.CutSuffix(name, "!")
		if required && !p.Has(name) {
			return missing(name)
		}
		if rule := rules[name]; rule != nil && p.Has(name) {
			if fault := rule(name, p.Get(name)); fault != nil {
				return fault
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Values)) {
		if base, _, _ := strings.Cut(name, "["); !slices.Contains(known, base) {
			return invalid("parameter_unknown", name, "Received unknown parameter: %s.", name)
		}
	}
	return nil
}

// number is an integer that its rule has passed, 0 when absent.
func (p params) number(name string) int64 {
	n, _ := strconv.ParseInt(p.Get(name), 10, 64)
	return n
}

// metadata collects metadata[key]=value.
func (p params) metadata() map[string]string {
	pairs := map[string]string{}
	for name := range p.Values {
		if key, is := strings.CutPrefix(name, "metadata["); is {
			pairs[strings.TrimSuffix(key, "]")] = p.Get(name)
		}
	}
	return pairs
}
