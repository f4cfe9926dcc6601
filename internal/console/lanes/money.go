package lanes

import "fmt"

// decimals are those of the currencies that do not have two in ISO 4217.
var decimals = map[string]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0, "UGX": 0, "UYI": 0,
	"VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3, "CLF": 4, "UYW": 4,
}

// Money shows an amount, which is in minor units, in units of its currency.
func Money(amount int64, currency string) string {
	n, ok := decimals[currency]
	if !ok {
		n = 2
	}
	digits := fmt.Sprintf("%0*d", n+1, amount)
	whole, part := digits[:len(digits)-n], digits[len(digits)-n:]
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "\u202f" + whole[i:]
	}
	if n > 0 {
		whole += "." + part
	}
	return whole + " " + currency
}
