package stripe_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/bojanz/currency"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
)

// TestClient_convertsAmountsBothWays charges and refunds at the sandbox, whose books
// are in Stripe's minor units. What they should say is from
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

			retrieved, err := o.RetrieveIntent(ctx, created.ID)
			if err != nil {
				t.Fatal(err)
			}
			intents := []stripe.Intent{confirmed, retrieved}
			for in, err := range o.Intents(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				intents = append(intents, in)
			}
			for _, in := range intents {
				if in.Amount != test.charge || in.AmountReceived != test.charge {
					t.Errorf("the intent is read as %d of %d %s, want %d of %d", in.AmountReceived, in.Amount, in.Currency, test.charge, test.charge)
				}
			}
			if created.Amount != test.charge {
				t.Errorf("the intent was made over %d %s, want %d", created.Amount, created.Currency, test.charge)
			}
			read, err := o.RetrieveRefund(ctx, refunded.ID)
			if err != nil {
				t.Fatal(err)
			}
			refunds := []stripe.Refund{refunded, read}
			for _, list := range []func(func(stripe.Refund, error) bool){o.RefundsOf(ctx, created.ID), o.Refunds(ctx)} {
				for r, err := range list {
					if err != nil {
						t.Fatal(err)
					}
					refunds = append(refunds, r)
				}
			}
			for _, r := range refunds {
				if r.Amount != test.refund {
					t.Errorf("the refund is read as %d %s, want %d", r.Amount, r.Currency, test.refund)
				}
			}
			if len(intents) != 3 || len(refunds) != 4 {
				t.Errorf("read %d intents and %d refunds", len(intents), len(refunds))
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

// TestClient_holdsWhatTheAPIAccepts: an amount that passes the API's rule is one that
// the client can send, in every currency that the API knows.
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

// TestMinorUnits_areThoseOfStripesList: the currencies of which Stripe's page says how
// many decimals they have, against ISO 4217 as the library has it. One that differs
// is converted.
func TestMinorUnits_areThoseOfStripesList(t *testing.T) {
	t.Parallel()
	const (
		zero  = "BIF CLP DJF GNF JPY KMF KRW PYG RWF VND VUV XAF XOF XPF" // and MGA, and UGX, which is sent with two
		three = "BHD JOD KWD OMR TND"
	)
	for digits, codes := range map[uint8]string{0: zero + " ISK UGX", 2: "MGA HUF TWD", 3: three} {
		for code := range strings.FieldsSeq(codes) {
			if got, known := currency.GetDigits(code); got != digits || !known {
				t.Errorf("%s has %d decimals in ISO 4217 as the library has it, want %d: look at stripeDigits", code, got, digits)
			}
		}
	}
}
