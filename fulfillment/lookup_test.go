package fulfillment_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/testdb"
)

// TestLostCharge: a database has lost a charge whose money is taken, and the client sends its key
// again. The new charge finds the money. The provider's own keys and the search each suffice.
func TestLostCharge(t *testing.T) {
	testdb.Long(t, "it makes two databases for each of many cases")
	t.Parallel()
	again := order()
	again.Reference = "ref_1"
	other, dearer, declined := again, again, again
	other.Description, dearer.Amount, declined.PaymentMethod = "changed", 2999, "pm_card_chargeDeclined"
	const lags, forgets = `{"search_lag": "1h"}`, `{"forget_keys_after": "0s", "search_lag": "0s"}`
	for name, test := range map[string]struct {
		first, again domain.ChargeRequested
		faults       string
		recovered    bool
		failed       bool     // the first creation, so the money is under the second key
		listed       int      // reads of the list that do not go back far enough
		ends         []string // of the deliveries
		calls        string
		status       domain.Status // of the charge at last
	}{
		"the provider has the key":            {again, again, lags, true, false, 0, []string{"done"}, "search create confirm retrieve", domain.Succeeded},
		"the provider has the second key":     {again, again, lags, true, true, 0, []string{"waits", "done"}, "search create search create confirm retrieve", domain.Succeeded},
		"the provider has forgotten it":       {again, again, forgets, true, false, 0, []string{"done"}, "search retrieve", domain.Succeeded},
		"nothing says that it was lost":       {again, again, noFault, false, false, 0, []string{"done"}, "create confirm retrieve", domain.Succeeded},
		"other parameters":                    {again, other, `{"search_lag": "0s"}`, false, false, 1, []string{"waits", "done"}, "create retrieve search retrieve", domain.Succeeded},
		"other parameters, and a lag":         {again, other, lags, true, false, 2, []string{"waits", "waits", "waits"}, "search create retrieve search retrieve search", domain.Pending},
		"another amount":                      {again, dearer, `{"search_lag": "0s"}`, true, false, 0, []string{"dead"}, "search retrieve", domain.Pending},
		"it was declined":                     {declined, declined, lags, true, false, 0, []string{"done"}, "search create confirm retrieve", domain.Failed},
		"it was declined and the key is gone": {declined, declined, forgets, true, false, 0, []string{"done"}, "search retrieve", domain.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, g := newFixture(t), newFixture(t)
			f.useSandbox()
			f.accept("ch_1", test.first)
			if test.failed {
				f.provider.on("create", f.provider.under(failsBefore, f.provider.sandbox.ServeHTTP))
				f.expectEnd(f.deliver(), "waits")
			}
			f.expectEnd(f.deliver(), "done")
			captures := len(f.provider.records(t).Captures)
			f.provider.take()

			g.provider, g.client = f.provider, f.client
			g.charge = g.handler(fulfillment.Services{
				Provider: f.client, ActionTimeout: time.Hour,
				Recovered: func(context.Context) (bool, error) { return test.recovered, nil },
			}, fulfillment.ChargeReceiver)
			g.provider.control(t, http.MethodPut, "/faults", test.faults)
			for range test.listed {
				g.provider.on("retrieve", lists())
			}
			g.accept("ch_2", test.again)
			for _, end := range test.ends {
				g.expectEnd(g.deliver(), end)
			}
			g.expectCaptures(captures)
			if got := g.provider.take(); got != test.calls {
				t.Errorf("the provider was called to %q, want %q", got, test.calls)
			}
			if got := g.load("ch_2").Charge.Status; got != test.status {
				t.Errorf("the charge is %s, want %s", got, test.status)
			}
		})
	}
}

func TestLostCharge_waitsForWhetherItIsLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	unknown := errors.New("unknown")
	first := order()
	first.Reference = "ref_1"
	f.accept("ch_1", first)
	charge := f.handler(fulfillment.Services{Provider: f.client, Recovered: func(context.Context) (bool, error) { return false, unknown }}, fulfillment.ChargeReceiver)
	if err := f.deliverAll(fulfillment.ChargeReceiver, charge, 1)[0]; !errors.Is(err, unknown) {
		t.Errorf("the delivery ends with %v, want %v", err, unknown)
	}
	f.expectCalls("")
}
