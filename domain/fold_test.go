package domain_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// TestFold_continuations of one charge have nothing in common.
func TestFold_continuations(t *testing.T) {
	t.Parallel()
	c := in("succeeded")
	ids := []string{"re_1", "re_2", "re_3", "re_4", "re_5", "re_6"}
	for i, id := range ids {
		left, right := domain.Fold(c, back("left", 1)), domain.Fold(c, back("right", 2))
		if left.Refunds[i].ID != "left" || right.Refunds[i].ID != "right" {
			t.Errorf("after %d refunds the next are %s and %s", i, left.Refunds[i].ID, right.Refunds[i].ID)
		}
		c = domain.Fold(c, back(id, 10))
	}
	for i, id := range ids {
		soon := domain.Fold(c, gone(id, "rp_"+id, 10))
		late := domain.Fold(c, domain.RefundAttemptFailed{RefundID: id}, gone(id, "rp_"+id, 10))
		if got := []int{soon.Unnotified[i+1], late.Unnotified[i+1]}; got[0] != c.Version+1 || got[1] != c.Version+2 {
			t.Errorf("after %d outcomes the webhooks about versions %d and %d are due", i+1, got[0], got[1])
		}
		c = soon
	}
}

// TestView compares what merchants see of charges, a refund and a dispute with testdata/views.txt.
func TestView(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("elsewhere", 3600))
	var lines []string
	show := func(name string, view any) {
		data, err := json.Marshal(view)
		testrun.Must(t, err)
		lines = append(lines, name+" | "+string(data))
	}
	for _, name := range []string{"requested", "rejected", "declined", "acting", "refunded and notified"} {
		show(name, in(name).View(at))
	}
	show("without metadata", domain.Fold(domain.Charge{}, domain.ChargeRequested{Terms: domain.Terms{Money: domain.Money{Amount: 1}}}).View(at))
	c := in("refund failed")
	show("refund failed", c.RefundView(c.Refunds[0]))
	c = in("dispute won")
	show("dispute won", c.DisputeView(c.Disputes[0]))
	only := domain.Fold(domain.Charge{}, event(`charge {"steps":["payment"]}`))
	show("only the frozen steps", only.View(at))
	if only.Next() != domain.Payment || only.StepStatus(domain.Inventory) != "" {
		t.Errorf("next is %q, inventory is %q", only.Next(), only.StepStatus(domain.Inventory))
	}
	testrun.Golden(t, "views.txt", append(lines, "")...)
}
