package fulfillment_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/stripe"
)

// sandboxed is a memory whose provider is the sandbox, with its own records of the money.
type sandboxed struct {
	*memory

	provider *provider
	client   *stripe.Client
}

func newSandboxed(t *testing.T, first domain.ChargeRequested) *sandboxed {
	t.Helper()
	p := newProvider(t)
	client := newClient(t, p.URL)
	return &sandboxed{newMemory(t, fulfillment.Services{Provider: client, ActionTimeout: time.Hour}, first), p, client}
}

// ends delivers the message about the newest request, and checks how each delivery ends.
func (s *sandboxed) ends(want ...string) {
	s.t.Helper()
	for _, end := range want {
		if err := s.deliver(""); endOf(err) != end {
			s.t.Errorf("the handler returned %v, want %s", err, end)
		}
	}
}

// TestResentKey: a database has lost a charge, and the client sends its key again. The provider has the first
// payment intent under the key, until it forgets the key. Of another payment's key the charge fails.
func TestResentKey(t *testing.T) {
	t.Parallel()
	dearer, declined := order(), order()
	dearer.Amount, declined.PaymentMethod = 2999, "pm_card_chargeDeclined"
	for name, test := range map[string]struct {
		first    domain.ChargeRequested
		forgets  bool
		again    domain.ChargeRequested
		captures int
		failure  domain.FailureCode
	}{
		"the payment was captured":                              {order(), false, order(), 1, ""},
		"the payment was declined":                              {declined, false, declined, 0, domain.CardDeclined},
		"the key is forgotten, so the audit has two captures":   {order(), true, order(), 2, ""},
		"another amount":                                        {order(), false, dearer, 1, domain.ProviderRefused},
		"the second charge expires before it asks the provider": {order(), false, until(nine), 1, domain.Expired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSandboxed(t, test.first)
			s.ends("done")
			first := s.stream.Charge.PaymentIntent
			if test.forgets {
				s.provider.forgetKeys()
			}
			s.memory = newMemory(t, fulfillment.Services{Provider: s.client}, test.again)
			s.ends("done")
			c, captures := s.stream.Charge, s.provider.records(t).Captures
			if len(captures) != test.captures || (c.Failure == nil) != (test.failure == "") || c.Failure != nil && c.Failure.Code != test.failure {
				t.Errorf("the charge is %s %v, want %q; the captures are %+v, want %d", c.Status, c.Failure, test.failure, captures, test.captures)
			}
			if same := c.PaymentIntent == first; same != slices.Contains([]string{"the payment was captured", "the payment was declined"}, name) {
				t.Errorf("the charge has %s, the first one had %s", c.PaymentIntent, first)
			}
		})
	}
}

// TestCustomer: a saved payment method is charged with its customer alone, and one that is attached to no
// customer once. The merchant reads the provider's reason.
func TestCustomer(t *testing.T) {
	t.Parallel()
	for method, rows := range map[string][]struct{ customer, because string }{
		"pm_saved_ada": {{"", "Please include the Customer"}, {"cus_bob", "does not belong to the Customer"}, {"cus_ada", ""}},
		"pm_once_used": {{"", ""}, {"", "may not be used again"}},
	} {
		s := newSandboxed(t, order())
		for i, row := range rows {
			first := order()
			first.PaymentMethod, first.Customer, first.Reference = method, row.customer, fmt.Sprint("ref_", i)
			s.memory = newMemory(t, fulfillment.Services{Provider: s.client}, first)
			s.ends("done")
			failure := s.stream.Charge.Failure
			if (failure == nil) != (row.because == "") || failure != nil && !strings.Contains(failure.Message, row.because) {
				t.Errorf("%s of %q failed because of %+v, want %q", method, row.customer, failure, row.because)
			}
		}
	}
}
