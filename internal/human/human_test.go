package human_test

import (
	"testing"

	"github.com/payonce/payonce/internal/human"
)

func TestMoney(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]struct {
		amount   int64
		currency string
	}{
		"12.50 EUR":             {1250, "EUR"},
		"0.05 USD":              {5, "USD"},
		"1,250 JPY":             {1250, "JPY"},
		"1.250 KWD":             {1250, "KWD"},
		"10,000,000,000.00 EUR": {1_000_000_000_000, "EUR"},
	} {
		if got := human.Money(m.amount, m.currency); got != want {
			t.Errorf("Money(%d, %s) is %q, want %q", m.amount, m.currency, got, want)
		}
	}
}
