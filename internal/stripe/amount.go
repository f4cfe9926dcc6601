package stripe

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
)

// stripeUnits holds the currencies whose minor unit at Stripe is not ISO 4217's.
// Source: https://docs.stripe.com/currencies, "Zero-decimal currencies" and "Special
// cases": ISK and UGX have no decimals, but are sent with two that are 0; MGA is
// zero-decimal. HUF and TWD are special in payouts alone, which payonce does not
// make. BHD, JOD, KWD, OMR and TND have three, as in ISO 4217, the last of them 0:
// domain.Currency.Step keeps others out.
var stripeUnits = map[string]unit{"ISK": {sent: 100}, "UGX": {sent: 100}, "MGA": {iso: 100}}

// unit says how many minor units of Stripe (sent) are how many of ISO 4217 (iso);
// 0 stands for 1.
type unit struct{ sent, iso int64 }

func unitOf(currency string) (sent, iso int64) {
	u := stripeUnits[strings.ToUpper(currency)]
	return cmp.Or(u.sent, 1), cmp.Or(u.iso, 1)
}

// sentAmount converts ISO 4217 minor units to Stripe's. An amount that Stripe cannot
// hold is a [RejectedError].
func sentAmount(amount int64, currency string) (int64, error) {
	sent, iso := unitOf(currency)
	converted, err := convert(amount, iso, sent)
	if err != nil || currency == "" {
		return 0, unsent(fmt.Sprintf("%d %q is no amount of the provider's", amount, currency))
	}
	return converted, nil
}

// receivedAmount converts Stripe's minor units to those of ISO 4217.
func receivedAmount(amount int64, currency string) (int64, error) {
	sent, iso := unitOf(currency)
	converted, err := convert(amount, sent, iso)
	if err != nil {
		return 0, fmt.Errorf("%d %s: %w", amount, currency, err)
	}
	return converted, nil
}

func convert(amount, from, to int64) (int64, error) {
	if amount%from != 0 || amount/from > math.MaxInt64/to {
		return 0, errors.New("it is no whole amount in ISO 4217 minor units")
	}
	return amount / from * to, nil
}
