package sandbox

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The parameters of calls. Those that end with ! are required; an endpoint reads the others where it wants.
const (
	ofCreation     = "amount! currency! customer description metadata confirm automatic_payment_methods " + ofConfirmation
	ofConfirmation = "payment_method return_url off_session error_on_requires_action"
	ofCancellation = "cancellation_reason"
	ofRefund       = "payment_intent! amount reason metadata"
	ofPage         = "limit starting_after"
)

// rule says which values a parameter may have, and how Stripe refuses others.
type rule struct {
	pattern       *regexp.Regexp
	code, message string
}

func newRule(code, message string, alternatives ...string) rule {
	return rule{regexp.MustCompile("^(?:" + strings.Join(alternatives, "|") + ")$"), code, message}
}

// rules are those of the parameters. One without a rule may have any value.
var rules = map[string]rule{
	"amount":   newRule("parameter_invalid_integer", "Invalid integer: %s.", "[1-9][0-9]{0,17}"),
	"limit":    newRule("parameter_invalid_integer", "Invalid integer: %s.", "[1-9][0-9]?", "100"),
	"confirm":  newRule("", "Invalid boolean: %s.", "true", "false"),
	"currency": newRule("", "Invalid currency: %s.", "(?i)"+strings.ReplaceAll(stripe.Currencies, " ", "|")),
	"payment_method": newRule("resource_missing", "No such PaymentMethod: '%s'.",
		append(slices.Collect(maps.Keys(stripe.Methods)), savedMethod+".+", onceMethod+".+")...),
	"customer": newRule("resource_missing", "No such customer: '%s'.", anyCustomer+".+"),
}

const limitDefault = 10

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
		if r, ruled := rules[name]; ruled && p.Has(name) && !r.pattern.MatchString(p.Get(name)) {
			return invalid(r.code, name, r.message, p.Get(name))
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

// outcome is what an attempt comes to: a status, or the code, the decline code and the
// message of a card error. With both, the customer can act: the status is that of a request with a return_url.
type outcome struct{ Status, Code, Decline, Message string }

// What payment methods begin with that are no test tokens. pm_saved_NAME is attached to the
// customer cus_NAME, and pm_once_NAME to none.
const (
	savedMethod = "pm_saved_"
	onceMethod  = "pm_once_"
	anyCustomer = "cus_"
)

// usable returns Stripe's refusal of a payment method that is attached to another customer than
// the intent's, or that is attached to none and was attempted; nil if it may be attempted.
func (b *books) usable(method, customer string) *refusal {
	const param = "payment_method"
	name, saved := strings.CutPrefix(method, savedMethod)
	used := func(id string) bool { return b.objects[id]["payment_method"] == method }
	switch owner := anyCustomer + name; {
	case saved && customer == "":
		return invalid("parameter_missing", param, "%s belongs to the Customer %s. Please include the Customer.", method, owner)
	case saved && customer != owner:
		return invalid("", param, "%s does not belong to the Customer %s. Please use it with its own.", method, customer)
	case strings.HasPrefix(method, onceMethod) && slices.ContainsFunc(b.ids["charge"], used):
		return invalid("", param, "%s was previously used without a Customer. It may not be used again.", method)
	}
	return nil
}
