package domain

// Bounds of an amount, in minor units.
const (
	MinAmount = 1
	MaxAmount = 1_000_000_000_000
)

// Currency is an ISO 4217 code in upper case. It has the minor units of ISO 4217, whatever the provider's are.
type Currency string

// Increment is what an amount of the currency must be a multiple of, in minor units, for the provider to move it.
// Stripe wants a last digit 0 where there are three decimals, and moves whole ariary alone, which have two in ISO 4217.
// Source: https://docs.stripe.com/currencies, "Three-decimal currencies".
func (c Currency) Increment() int64 {
	switch c {
	case "BHD", "JOD", "KWD", "OMR", "TND":
		return 10
	case "MGA":
		return 100
	default:
		return 1
	}
}

// Money is an amount in minor units of a currency. JPY has none, so there one unit is one yen.
type Money struct {
	Amount   int64    `json:"amount" detail:"amount"`
	Currency Currency `json:"currency" detail:"currency"`
}

// FeeSchedule is what a merchant pays for a captured charge in one currency.
type FeeSchedule struct {
	BasisPoints int64 // hundredths of a percent, 0 to 10000
	Fixed       int64 // minor units, added to the percentage
}

// Of is the fee of an amount, in minor units: rounded half up, never more than the amount.
func (f FeeSchedule) Of(amount int64) int64 {
	const whole = 10_000
	percentage := (amount*f.BasisPoints + whole/2) / whole
	return min(max(percentage+min(f.Fixed, MaxAmount), 0), amount)
}
