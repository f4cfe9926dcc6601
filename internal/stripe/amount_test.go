package stripe_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/bojanz/currency"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
)

// The sandbox's books are in Stripe's minor units. The expected amounts are from
// https://docs.stripe.com/currencies.
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
			o := newOutside(t)
			ctx := t.Context()
			created, err := o.CreateIntent(ctx, "create", stripe.CreateParams{
				Reference: "ch_1", Amount: test.charge, Currency: test.currency, PaymentMethod: "pm_card_visa",
			})
			if err != nil {
				t.Fatal(err)
			}
			confirmed, err := o.ConfirmIntent(ctx, "confirm", created.ID)
			if err != nil {
				t.Fatal(err)
			}
			refunded, err := o.CreateRefund(ctx, "refund", stripe.RefundParams{
				Reference: "re_1", PaymentIntent: created.ID, Amount: test.refund, Currency: test.currency,
			})
			if err != nil {
				t.Fatal(err)
			}
			if b := o.books(); b.Captures[0].Amount != test.sent || b.Refunds[0].Amount != test.back {
				t.Errorf("a charge of %d %s captured %d, want %d, and a refund of %d gave %d back, want %d",
					test.charge, test.currency, b.Captures[0].Amount, test.sent, test.refund, b.Refunds[0].Amount, test.back)
			}

			listed, err := collect(o.Intents(ctx))
			if err != nil || len(listed) != 1 {
				t.Fatalf("%d intents, %v", len(listed), err)
			}
			for _, in := range []stripe.Intent{confirmed, listed[0]} {
				if created.Amount != test.charge || in.Amount != test.charge || in.AmountReceived != test.charge {
					t.Errorf("the intent is read as %d of %d %s, want %d of %d", in.AmountReceived, in.Amount, in.Currency, test.charge, test.charge)
				}
			}
			refunds, err := collect(o.RefundsOf(ctx, created.ID))
			if err != nil || len(refunds) != 1 || refunds[0].Amount != test.refund || refunded.Amount != test.refund {
				t.Errorf("the refund of %d is read as %d and %+v, %v", test.refund, refunded.Amount, refunds, err)
			}
		})
	}
}

func TestClient_refusesAnAmountThatStripeCannotHold(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	var rejected *stripe.RejectedError
	for code, amount := range map[string]int64{"MGA": 1050, "": 1000} {
		_, err := o.CreateIntent(t.Context(), "create", stripe.CreateParams{Reference: "ch_1", Amount: amount, Currency: code})
		if !errors.As(err, &rejected) {
			t.Errorf("an intent over %d %s: %v, want it rejected", amount, code, err)
		}
		_, err = o.CreateRefund(t.Context(), "refund", stripe.RefundParams{PaymentIntent: "pi_1", Amount: amount, Currency: code})
		if !errors.As(err, &rejected) {
			t.Errorf("a refund of %d %s: %v, want it rejected", amount, code, err)
		}
	}
	if n := o.books().Requests; n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// The client can send every amount that passes the API's rule, in every currency.
func TestClient_holdsWhatTheAPIAccepts(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	for _, code := range currency.GetCurrencyCodes() {
		step := domain.Currency(code).Step()
		in, err := o.CreateIntent(t.Context(), "create_"+code, stripe.CreateParams{
			Reference: "ch_" + code, Amount: 7 * step, Currency: code, PaymentMethod: "pm_card_visa",
		})
		if err != nil || in.Amount != 7*step {
			t.Errorf("7 times the step of %d %s is sent and read as %d: %v", step, code, in.Amount, err)
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
