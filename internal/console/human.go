package console

import (
	"fmt"
	"time"

	"github.com/bojanz/currency"
)

// span is the text of a duration, in three digits or to a second.
func span(d time.Duration) string {
	unit := time.Nanosecond
	for unit < time.Second && d.Abs()/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

// money shows an amount, which is in minor units, in units of its currency.
func money(amount int64, code string) string {
	exact, err := currency.NewAmountFromInt64(amount, code)
	if err != nil {
		return fmt.Sprintf("%d %s", amount, code)
	}
	formatter := currency.NewFormatter(currency.NewLocale("en"))
	formatter.CurrencyDisplay = currency.DisplayNone
	return formatter.Format(exact) + " " + code
}

// plural counts in words.
func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
