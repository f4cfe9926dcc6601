package stripe_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/bojanz/currency"
	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
)

// echo is a provider that holds every intent and refund as it was asked for, and a client of
// it. sent returns the amounts that it received.
func echo(t *testing.T, code string) (c *stripe.Client, sent func() []int64) {
	t.Helper()
	var amounts []int64
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		amount, err := strconv.ParseInt(r.FormValue("amount"), 10, 64)
		if err != nil {
			t.Error(err)
		}
		amounts = append(amounts, amount)
		body := intentJSON("amount", amount, "amount_received", amount, "currency", strings.ToLower(code))
		if strings.HasSuffix(r.URL.Path, "/refunds") {
			body = refundJSON("amount", amount, "currency", strings.ToLower(code))
		}
		answer(http.StatusOK, body)(w, r)
	})
	return newClient(t, p.URL, 0), func() []int64 { return amounts }
}

// The expected amounts are from https://docs.stripe.com/currencies.
func TestClient_convertsAmountsBothWays(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		currency     string
		charge, sent int64 // in minor units of ISO 4217 and of Stripe
		refund, back int64
	}{
		{"ISK", 1000, 100000, 5, 500}, // two decimals that are 0
		{"UGX", 1000, 100000, 5, 500},
		{"MGA", 1000, 10, 200, 2}, // zero-decimal
		{"JPY", 1000, 1000, 5, 5}, // zero-decimal, as in ISO 4217
		{"HUF", 1001, 1001, 5, 5}, // whole units in payouts alone
		{"TWD", 1001, 1001, 5, 5},
		{"KWD", 5120, 5120, 10, 10}, // three decimals, the last one 0
		{"USD", 1001, 1001, 5, 5},
	} {
		t.Run(test.currency, func(t *testing.T) {
			t.Parallel()
			c, sent := echo(t, test.currency)
			in, err := c.CreateIntent(t.Context(), "create", stripe.CreateParams{
				Reference: "ch_1", Amount: test.charge, Currency: test.currency, PaymentMethod: "pm_card_visa",
			})
			if err != nil || in.Amount != test.charge || in.AmountReceived != test.charge || in.Currency != test.currency {
				t.Errorf("the intent over %d is read as %+v, %v", test.charge, in, err)
			}
			r, err := c.CreateRefund(t.Context(), "refund", stripe.RefundParams{
				Reference: "re_1", PaymentIntent: "pi_1", Amount: test.refund, Currency: test.currency,
			})
			if err != nil || r.Amount != test.refund || r.Currency != test.currency {
				t.Errorf("the refund of %d is read as %+v, %v", test.refund, r, err)
			}
			if diff := cmp.Diff([]int64{test.sent, test.back}, sent()); diff != "" {
				t.Errorf("sent (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClient_refusesAnAmountThatStripeCannotHold(t *testing.T) {
	t.Parallel()
	for code, amount := range map[string]int64{"MGA": 1050, "": 1000} {
		c, sent := echo(t, code)
		if _, err := c.CreateIntent(t.Context(), "create", stripe.CreateParams{Reference: "ch_1", Amount: amount, Currency: code}); kinds(err) != "rejected" {
			t.Errorf("an intent over %d %s: %v, want it rejected", amount, code, err)
		}
		if _, err := c.CreateRefund(t.Context(), "refund", stripe.RefundParams{PaymentIntent: "pi_1", Amount: amount, Currency: code}); kinds(err) != "rejected" {
			t.Errorf("a refund of %d %s: %v, want it rejected", amount, code, err)
		}
		if n := len(sent()); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	}
}

// The client can send every amount that passes the API's rule, in every currency.
func TestClient_holdsWhatTheAPIAccepts(t *testing.T) {
	t.Parallel()
	for _, code := range currency.GetCurrencyCodes() {
		c, _ := echo(t, code)
		amount := 7 * domain.Currency(code).Step()
		in, err := c.CreateIntent(t.Context(), "create", stripe.CreateParams{Reference: "ch_1", Amount: amount, Currency: code, PaymentMethod: "pm_card_visa"})
		if err != nil || in.Amount != amount {
			t.Errorf("%d %s is sent and read as %d: %v", amount, code, in.Amount, err)
		}
	}
}

// Where Stripe's page gives the decimals of a currency, the library's ISO 4217 list
// has the same, or stripeUnits converts it.
func TestMinorUnits_areThoseOfStripesList(t *testing.T) {
	t.Parallel()
	const (
		zero  = "BIF CLP DJF GNF JPY KMF KRW PYG RWF VND VUV XAF XOF XPF" // and MGA, and UGX, which is sent with two
		three = "BHD JOD KWD OMR TND"
	)
	for digits, codes := range map[uint8]string{0: zero + " ISK UGX", 2: "MGA HUF TWD", 3: three} {
		for code := range strings.FieldsSeq(codes) {
			if got, known := currency.GetDigits(code); got != digits || !known {
				t.Errorf("%s has %d decimals in ISO 4217 as the library has it, want %d: check stripeUnits", code, got, digits)
			}
		}
	}
}
