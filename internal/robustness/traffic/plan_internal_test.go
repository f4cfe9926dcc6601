package traffic

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/testrun"
)

func TestNewPlan_isDrawnFromItsSeed(t *testing.T) {
	t.Parallel()
	testrun.Same(t, "another plan of the same seed", NewPlan(42, 200, "run"), NewPlan(42, 200, "run"))
	if cmp.Equal(NewPlan(42, 200, "run").Charges, NewPlan(43, 200, "run").Charges) {
		t.Error("another seed gives the same charges")
	}
	if plan := NewPlan(5, 1, "run"); !plan.Charges[0].MustSucceed() {
		t.Errorf("a single charge ends with %v", plan.Charges[0].Outcomes)
	}
}

func TestNewPlan_hasEverySortOfChargeAndRefund(t *testing.T) {
	t.Parallel()
	plan := NewPlan(3, 200, "run")
	keys, orders, sorts := map[string]bool{}, map[string]bool{}, map[string]int{}
	for _, charge := range plan.Charges {
		keys[charge.Key], orders[charge.Order] = true, true
		sorts["charge: "+strings.Join(charge.Outcomes, " or ")]++
		if charge.Cancel {
			sorts["cancellation"]++
		}
		for _, refund := range charge.Refunds {
			keys[refund.Key] = true
			sorts["refund: "+strings.Join(refund.Outcomes, " or ")]++
			if refund.Outside {
				sorts["refund outside"]++
			}
			if string(refund.Body) == "{}" {
				sorts["refund of the rest"]++
			}
		}
		sorts["dispute: "+charge.Disputed]++
		if !charge.Rivals {
			continue
		}
		sorts["rivals"]++
		// There is enough for either of them and not for both.
		a, b := charge.Refunds[0].Amount, charge.Refunds[1].Amount
		if len(charge.Refunds) != 2 || a > charge.Amount || b > charge.Amount || a+b <= charge.Amount {
			t.Errorf("of %d the rivals want %d and %d", charge.Amount, a, b)
		}
	}
	want := []string{"cancellation", "refund of the rest", "refund outside", "dispute: won", "dispute: lost", "rivals"}
	for _, outcomes := range []string{Succeeded, Failed, TooMuch, NotCaptured, Succeeded + " or " + TooMuch} {
		want = append(want, "refund: "+outcomes)
	}
	for _, kind := range kinds {
		want = append(want, "charge: "+strings.Join(kind.outcomes, " or "))
		// A short plan has one of each, too.
		if !slices.ContainsFunc(NewPlan(3, 30, "run").Charges, func(c Charge) bool { return slices.Equal(c.Outcomes, kind.outcomes) }) {
			t.Errorf("of 30 charges none ends with %v", kind.outcomes)
		}
	}
	for _, sort := range want {
		if sorts[sort] == 0 {
			t.Errorf("there is no %s: %v", sort, sorts)
		}
	}
	if len(keys) != 200+plan.Refunds() || len(orders) != 200 {
		t.Errorf("%d keys, %d refunds, %d orders", len(keys), plan.Refunds(), len(orders))
	}
	if wanted, supply := plan.Count(Charge.IsScarce), plan.Stock[ScarceSKU]; supply < 1 || wanted <= supply {
		t.Errorf("of the scarce SKU %d are wanted, %d in stock", wanted, supply)
	}
}
