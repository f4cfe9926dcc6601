package sandbox_test

import (
	"net/http"
	"testing"

	"github.com/payonce/payonce/internal/sandbox"
)

// TestCustomer: a saved payment method needs its customer, one that is attached to none works once,
// and a test token stands for a new one each time.
func TestCustomer(t *testing.T) {
	t.Parallel()
	ada, bob := []string{"customer", "cus_ada"}, []string{"customer", "cus_bob"}
	ok := func(status, customer any) step {
		return step{"", nil, 200, members{"status": status, "customer": customer}}
	}
	refused := func(code, message any) step {
		return step{"", nil, 400, members{
			"error.type": "invalid_request_error", "error.code": code, "error.param": "payment_method", "error.message": message,
		}}
	}
	missing := refused("parameter_missing", "The `payment_method` parameter supplied pm_saved_ada belongs to the Customer cus_ada. "+
		"Please include the Customer in the `customer` parameter on the PaymentIntent.")
	foreign := refused(nil, "The PaymentMethod pm_saved_ada does not belong to the Customer you supplied cus_bob. "+
		"Please use this PaymentMethod with the Customer that it belongs to instead.")
	used := refused(nil, "The provided PaymentMethod was previously used with a PaymentIntent without Customer attachment, "+
		"shared with a connected account without Customer attachment, or was detached from a Customer. It may not be used again. "+
		"To use a PaymentMethod multiple times, you must attach it to a Customer first.")
	type payment struct {
		customer []string
		answered step
	}
	for name, tc := range map[string]struct {
		method   string
		payments []payment
	}{
		"a saved method with its customer":    {"pm_saved_ada", []payment{{ada, ok("succeeded", "cus_ada")}, {ada, ok("succeeded", "cus_ada")}}},
		"a saved method without its customer": {"pm_saved_ada", []payment{{nil, missing}, {ada, ok("succeeded", "cus_ada")}}},
		"a saved method with another one":     {"pm_saved_ada", []payment{{bob, foreign}}},
		"an unattached method":                {"pm_once_1", []payment{{nil, ok("succeeded", nil)}, {nil, used}, {ada, used}}},
		"an unattached method of a customer":  {"pm_once_1", []payment{{ada, ok("succeeded", "cus_ada")}, {ada, used}}},
		"a test token":                        {"pm_card_visa", []payment{{nil, ok("succeeded", nil)}, {bob, ok("succeeded", "cus_bob")}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, sandbox.Options{})
			for _, p := range tc.payments {
				pairs := append([]string{"amount", "1000", "currency", "eur", "payment_method", tc.method, "confirm", "true"}, p.customer...)
				f.post("/v1/payment_intents", "", pairs...).want(t, p.answered.status, p.answered.want)
			}
		})
	}

	t.Run("the confirmation decides", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		first, second, third := f.create("pm_once_1"), f.create("pm_once_1"), f.create("")
		confirm := func(id string) string { return "/v1/payment_intents/" + id + "/confirm" }
		f.post(confirm(first), "").want(t, http.StatusOK, members{"status": "succeeded"})
		f.post(confirm(second), "").want(t, http.StatusBadRequest, used.want)
		a := f.post(confirm(third), "", "payment_method", "pm_saved_ada")
		a.want(t, http.StatusBadRequest, missing.want)
		a.want(t, http.StatusBadRequest, members{"error.payment_intent.id": third, "error.payment_intent.payment_method": nil})
		f.post(confirm(third), "", "payment_method", "pm_card_visa").want(t, http.StatusOK, members{"status": "succeeded"})
	})
}
