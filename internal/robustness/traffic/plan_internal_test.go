package traffic

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlan(t *testing.T) {
	t.Parallel()

	t.Run("the same seed gives the same plan", func(t *testing.T) {
		t.Parallel()
		if diff := cmp.Diff(NewPlan(42, 200, "run"), NewPlan(42, 200, "run")); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("another seed gives another plan", func(t *testing.T) {
		t.Parallel()
		if cmp.Equal(NewPlan(42, 200, "run").Charges, NewPlan(43, 200, "run").Charges) {
			t.Error("the charges are the same")
		}
	})

	t.Run("keys and orders are one charge's alone", func(t *testing.T) {
		t.Parallel()
		keys, orders, refunds := map[string]bool{}, map[string]bool{}, 0
		for _, charge := range NewPlan(1, 500, "run").Charges {
			keys[charge.Key], orders[charge.Order] = true, true
			for _, refund := range charge.Refunds {
				keys[refund.Key] = true
				refunds++
			}
		}
		if len(keys) != 500+refunds || len(orders) != 500 {
			t.Errorf("%d keys, %d refunds, %d orders", len(keys), refunds, len(orders))
		}
	})

	t.Run("every kind of charge is in it", func(t *testing.T) {
		t.Parallel()
		plan := NewPlan(3, 30, "run")
		for _, kind := range kinds {
			if !slices.ContainsFunc(plan.Charges, func(c Charge) bool { return slices.Equal(c.Outcomes, kind.outcomes) }) {
				t.Errorf("no charge ends with %v", kind.outcomes)
			}
		}
	})

	t.Run("every sort of refund and some cancellations are in it", func(t *testing.T) {
		t.Parallel()
		sorts, canceled := map[string]int{}, 0
		for _, charge := range NewPlan(3, 200, "run").Charges {
			if charge.Cancel {
				canceled++
			}
			for _, refund := range charge.Refunds {
				sorts[strings.Join(refund.Outcomes, " or ")]++
				if string(refund.Body) == "{}" {
					sorts["the rest"]++
				}
			}
		}
		for _, sort := range []string{Succeeded, Failed, TooMuch, NotCaptured, Succeeded + " or " + TooMuch, "the rest"} {
			if sorts[sort] == 0 {
				t.Errorf("no refund is of the sort %q: %v", sort, sorts)
			}
		}
		if canceled == 0 {
			t.Error("no charge is to be canceled")
		}
	})

	t.Run("of two rival refunds there is enough for either and not for both", func(t *testing.T) {
		t.Parallel()
		rivals := 0
		for _, charge := range NewPlan(3, 200, "run").Charges {
			if !charge.Rivals {
				continue
			}
			rivals++
			a, b := charge.Refunds[0].Amount, charge.Refunds[1].Amount
			if len(charge.Refunds) != 2 || a > charge.Amount || b > charge.Amount || a+b <= charge.Amount {
				t.Errorf("of %d: %d and %d", charge.Amount, a, b)
			}
		}
		if rivals == 0 {
			t.Error("there are none")
		}
	})

	t.Run("a single charge succeeds", func(t *testing.T) {
		t.Parallel()
		if plan := NewPlan(5, 1, "run"); !plan.Charges[0].MustSucceed() {
			t.Errorf("it ends with %v", plan.Charges[0].Outcomes)
		}
	})

	t.Run("scarce stock is wanted by more than can have it", func(t *testing.T) {
		t.Parallel()
		plan := NewPlan(9, 200, "run")
		wanted := 0
		for _, charge := range plan.Charges {
			if charge.IsScarce() {
				wanted++
			}
		}
		if supply := plan.Stock[ScarceSKU]; supply < 1 || wanted <= supply {
			t.Errorf("%d wanted, %d in stock", wanted, supply)
		}
	})
}
