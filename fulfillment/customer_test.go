package fulfillment_test

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testrun"
)

// TestCustomer: a saved payment method is charged with its customer alone, and one that is attached to
// no customer once. The merchant reads the provider's reason.
func TestCustomer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method, customer string
		captures         int
		because          string // a part of the failure's message
	}{
		"a saved method with its customer":      {"pm_saved_ada", "cus_ada", 1, ""},
		"a saved method without its customer":   {"pm_saved_ada", "", 0, "Please include the Customer"},
		"a saved method with another customer":  {"pm_saved_ada", "cus_bob", 0, "does not belong to the Customer"},
		"a method of no customer that was used": {"pm_once_used", "", 0, "may not be used again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := order()
			first.PaymentMethod, first.Customer = test.method, test.customer
			s := newSandboxed(t, first)
			if test.method == "pm_once_used" {
				used, err := s.client.CreateIntent(t.Context(), "create", stripe.CreateParams{Amount: 100, Currency: "EUR", PaymentMethod: test.method})
				testrun.Must(t, err)
				_, err = s.client.ConfirmIntent(t.Context(), "confirm", used.ID, "")
				testrun.Must(t, err)
			}
			before := len(s.provider.records(t).Captures)
			s.ends("done")
			if got := len(s.provider.records(t).Captures) - before; got != test.captures {
				t.Errorf("the provider captured %d times, want %d", got, test.captures)
			}
			if failure := s.stream.Charge.Failure; (failure != nil) != (test.captures == 0) || failure != nil && !strings.Contains(failure.Message, test.because) {
				t.Errorf("the charge failed because of %+v, want %q", failure, test.because)
			}
		})
	}
}
