package demo

import (
	"slices"
	"strings"
	"testing"
)

// TestNewPlan_hasEverySortOfChargeAndRefund: the demo shows the more, the more sorts it sends. A
// short plan has one charge of each kind.
func TestNewPlan_hasEverySortOfChargeAndRefund(t *testing.T) {
	t.Parallel()
	if p := newPlan(5, 1, "run"); !slices.Equal(p.charges[0].outcomes, []string{succeeded}) {
		t.Errorf("a single charge ends with %v", p.charges[0].outcomes)
	}
	p, again, keys, sorts := newPlan(3, 200, "run"), newPlan(3, 200, "run"), map[string]bool{}, map[string]bool{}
	for i, c := range p.charges {
		keys[c.key] = true
		if string(c.body) != string(again.charges[i].body) || len(c.refunds) != len(again.charges[i].refunds) {
			t.Errorf("another plan of the same seed differs at %s", c.key)
		}
		sorts["dispute: "+c.disputed] = true
		sorts["charge: "+strings.Join(c.outcomes, " or ")] = true
		for _, refund := range c.refunds {
			keys[refund.key] = true
			sorts["refund: "+strings.Join(refund.outcomes, " or ")] = true
			sorts["refund outside"] = sorts["refund outside"] || refund.outside
		}
		if c.rivals { // there is enough for either of them and not for both
			sorts["rivals"] = true
			if a, b := c.refunds[0].amount, c.refunds[1].amount; len(c.refunds) != 2 || max(a, b) > c.amount || a+b <= c.amount {
				t.Errorf("of %d the rivals want %d and %d", c.amount, a, b)
			}
		}
	}
	want := []string{"refund outside", "dispute: won", "dispute: lost", "rivals"}
	for _, outcomes := range []string{succeeded, failed, tooMuch, notCaptured, succeeded + " or " + tooMuch} {
		want = append(want, "refund: "+outcomes)
	}
	short := newPlan(3, len(kinds), "run")
	for _, kind := range kinds {
		want = append(want, "charge: "+strings.Join(kind.outcomes, " or "))
		if !slices.ContainsFunc(short.charges, func(c charge) bool { return slices.Equal(c.outcomes, kind.outcomes) }) {
			t.Errorf("a short plan has none that ends with %v", kind.outcomes)
		}
	}
	for _, sort := range want {
		if !sorts[sort] {
			t.Errorf("there is no %s: %v", sort, sorts)
		}
	}
	if len(keys) < 250 {
		t.Errorf("200 charges and their refunds have %d keys", len(keys))
	}
}
