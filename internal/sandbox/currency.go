package sandbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// currencies are those in which Stripe charges cards. Sources of this file:
// https://docs.stripe.com/currencies, its lists of presentment and three-decimal currencies,
// special cases, and minimum amounts.
var currencies = strings.Fields(`usd aed afn all amd ang aoa ars aud awg azn bam bbd bdt bgn bhd bif bmd bnd bob
brl bsd bwp byn bzd cad cdf chf clp cny cop crc cve czk djf dkk dop dzd egp etb eur fjd fkp gbp gel gip gmd gnf
gtq gyd hkd hnl htg huf idr ils inr isk jmd jod jpy kes kgs khr kmf krw kwd kyd kzt lak lbp lkr lrd lsl mad mdl
mga mkd mmk mnt mop mur mvr mwk mxn myr mzn nad ngn nio nok npr nzd omr pab pen pgk php pkr pln pyg qar ron rsd
rub rwf sar sbd scr sek sgd shp sle sos srd std szl thb tjs tnd top try ttd twd tzs uah ugx uyu uzs vnd vuv wst
xaf xcd xcg xof xpf yer zar zmw`)

// minimums are the least amounts of a payment, in Stripe's minor units. For the other
// currencies Stripe converts the one of the account; here they have none.
var minimums = map[string]int64{
	"usd": 50, "aed": 200, "aud": 50, "bgn": 100, "brl": 50, "cad": 50, "chf": 50, "czk": 1500, "dkk": 250, "eur": 50,
	"gbp": 30, "hkd": 400, "huf": 17500, "inr": 50, "jpy": 50, "mxn": 1000, "myr": 200, "nok": 300, "nzd": 50,
	"pln": 200, "ron": 200, "sek": 300, "sgd": 50, "thb": 1000,
}

// currency reads a currency in any case, and returns it in lower case.
func (p *params) currency(name string) string {
	value := strings.ToLower(p.text(name))
	switch {
	case value == "":
		p.refuse(missing(name))
	case !slices.Contains(currencies, value):
		p.refuse(invalid("", name, "Invalid currency: %s. Stripe currently supports these currencies: %s", value, strings.Join(currencies, ", ")))
	}
	return value
}

// tooSmall refuses a payment that Stripe does not make.
func tooSmall(amount int64, currency string) *apiError {
	least := minimums[currency]
	if amount >= least {
		return nil
	}
	shown := fmt.Sprintf("%d.%02d", least/100, least%100)
	if currency == "jpy" {
		shown = strconv.FormatInt(least, 10)
	}
	return invalid("amount_too_small", "amount", "Amount must be at least %s %s", shown, currency)
}

// indivisible refuses an amount of which Stripe wants the last digits to be 0.
func indivisible(amount int64, currency string) *apiError {
	step := int64(1)
	switch currency {
	case "bhd", "jod", "kwd", "omr", "tnd":
		step = 10
	case "isk", "ugx":
		step = 100
	}
	if amount%step == 0 {
		return nil
	}
	return invalid("", "amount", "Amount in %s must be evenly divisible by %d.", currency, step)
}
