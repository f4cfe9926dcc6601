package fulfillment_test

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
)

// TestCustomer: a saved payment method is charged with its customer alone, and one that is attached to
// no customer once. The merchant reads the provider's reason.
func TestCustomer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method, customer string
		want             snapshot
		calls, because   string // calls of the provider, and a part of the failure's message
	}{
		"a saved method with its customer": {"pm_saved_ada", "cus_ada", succeeded(toStarted), "create confirm", ""},
		"a saved method without its customer": {
			"pm_saved_ada", "", failed(toReserved+declined, domain.ProviderRefused), "create", "Please include the Customer",
		},
		"a saved method with another customer": {
			"pm_saved_ada", "cus_bob", failed(toReserved+declined, domain.ProviderRefused), "create", "does not belong to the Customer",
		},
		"a method that was used": {
			"pm_once_used", "", failed(toReserved+declined, domain.ProviderRefused), "create", "may not be used again",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.useSandbox()
			used, err := f.client.CreateIntent(t.Context(), "create", stripe.CreateParams{Amount: 100, Currency: "EUR", PaymentMethod: "pm_once_used"})
			testdb.Must(t, err)
			_, err = f.client.ConfirmIntent(t.Context(), "confirm", used.ID, "")
			testdb.Must(t, err)
			f.provider.take()
			first := order()
			first.PaymentMethod, first.Customer = test.method, test.customer
			f.accept("ch_1", first)
			f.expectEnd(f.deliver(), "done")
			f.expect(test.want, test.calls)
			if failure := f.load("ch_1").Charge.Failure; failure != nil && !strings.Contains(failure.Message, test.because) {
				t.Errorf("the charge failed because of %q, want %q", failure.Message, test.because)
			}
		})
	}
}
