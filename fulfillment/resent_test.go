package fulfillment_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
)

// TestResentKey: a database has lost a charge, and the client sends its key again. The provider has
// the first payment intent under the key, until it forgets the key. Of another payment's key the
// charge fails, and the provider is asked for nothing else.
func TestResentKey(t *testing.T) {
	t.Parallel()
	again := order()
	again.Reference = "ref_1"
	dearer, declined, canceled := again, again, again
	dearer.Amount, declined.PaymentMethod = 2999, "pm_card_chargeDeclined"
	canceled.ExpiresAt = time.Now().Add(-time.Second).Truncate(time.Millisecond)
	for name, test := range map[string]struct {
		first    domain.ChargeRequested
		faults   string // of the provider, once the first charge is lost
		again    domain.ChargeRequested
		calls    string // of the second charge
		captures int
		failure  domain.FailureCode
	}{
		"the payment was captured":                              {again, noFault, again, "create confirm retrieve", 1, ""},
		"the payment was declined":                              {declined, noFault, declined, "create confirm retrieve", 0, domain.CardDeclined},
		"the key is forgotten, so the audit has two captures":   {again, forgetsKeys, again, "create confirm", 2, ""},
		"another amount":                                        {again, noFault, dearer, "create", 1, domain.ProviderRefused},
		"the second charge expires before it asks the provider": {again, noFault, canceled, "", 1, domain.Expired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, g := newFixture(t), newFixture(t)
			f.useSandbox()
			f.accept("ch_1", test.first)
			f.expectEnd(f.deliver(), "done")
			g.provider, g.client = f.provider, f.client
			g.charge = g.handler(fulfillment.Services{Provider: f.client, ActionTimeout: time.Hour}, fulfillment.ChargeReceiver)
			g.provider.control(t, http.MethodPut, "/faults", test.faults)
			g.provider.take()
			g.accept("ch_2", test.again)
			g.expectEnd(g.deliver(), "done")
			if got := g.provider.take(); got != test.calls {
				t.Errorf("the provider was called to %q, want %q", got, test.calls)
			}
			g.expectCaptures(test.captures)
			c := g.load("ch_2").Charge
			if !c.Terminal() || (c.Failure == nil) != (test.failure == "") || c.Failure != nil && c.Failure.Code != test.failure {
				t.Errorf("the charge is %s %v, want %q", c.Status, c.Failure, test.failure)
			}
			if test.captures == 1 && test.failure == "" && c.PaymentIntent != f.load("ch_1").Charge.PaymentIntent {
				t.Errorf("the charge has %s, want the first payment intent", c.PaymentIntent)
			}
		})
	}
}
