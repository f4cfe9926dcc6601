package stripe

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/bojanz/currency"
)

// stripeDigits are the decimals of an amount at Stripe where they are not those of
// ISO 4217. Source: https://docs.stripe.com/currencies, "Zero-decimal currencies"
// and "Special cases": ISK and UGX have none, but are sent with two that are 0; MGA
// is zero-decimal. HUF and TWD are special in payouts alone, which payonce does not
// make. BHD, JOD, KWD, OMR and TND have three, as in ISO 4217, the last of them 0:
// domain.Currency.Step keeps others out.
var stripeDigits = map[string]uint8{"ISK": 2, "UGX": 2, "MGA": 0}

var errNotConvertible = errors.New("the provider has another minor unit, in which this is no whole amount")

// sentAmount converts ISO 4217 minor units to Stripe's. An amount that Stripe cannot
// hold is a [RejectedError].
func sentAmount(minorUnits int64, code string) (int64, error) {
	if code == "" {
		return 0, unsent("an amount needs a currency")
	}
	iso, stripe := digits(code)
	sent, err := rescale(minorUnits, iso, stripe)
	if err != nil {
		return 0, unsent(fmt.Sprintf("%d %s: %v", minorUnits, code, err))
	}
	return sent, nil
}

// receivedAmount converts Stripe's minor units to those of ISO 4217.
func receivedAmount(amount int64, code string) (int64, error) {
	iso, stripe := digits(code)
	received, err := rescale(amount, stripe, iso)
	if err != nil {
		return 0, fmt.Errorf("%d %s: %w", amount, code, err)
	}
	return received, nil
}

// digits are the decimals of a currency in ISO 4217 and at Stripe. They are equal
// for one that is unknown here.
func digits(code string) (iso, stripe uint8) {
	code = strings.ToUpper(code)
	iso, _ = currency.GetDigits(code)
	stripe, special := stripeDigits[code]
	if !special {
		stripe = iso
	}
	return iso, stripe
}

func rescale(amount int64, from, to uint8) (int64, error) {
	for ; from > to; from-- {
		if amount%10 != 0 {
			return 0, errNotConvertible
		}
		amount /= 10
	}
	for ; from < to; from++ {
		if amount > math.MaxInt64/10 {
			return 0, errNotConvertible
		}
		amount *= 10
	}
	return amount, nil
}
