package domain_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

func TestFold(t *testing.T) {
	t.Parallel()

	t.Run("gives two continuations of one charge nothing in common", func(t *testing.T) {
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
	})
}

// TestFold_ofAVoidRequest: a request that a charge does not allow changes its version, and posts
// nothing.
func TestFold_ofAVoidRequest(t *testing.T) {
	t.Parallel()
	requests := candidates()
	maps.DeleteFunc(requests, func(_ string, e domain.Event) bool { return !domain.EventTypeNamed(domain.TypeOf(e)).Request })
	for _, kind := range domain.EventTypes() {
		if kind.Request {
			requests[kind.Name+" that cannot be read"] = domain.Unreadable{Name: kind.Name}
		}
	}
	voids := 0
	for _, s := range states {
		for name, e := range requests {
			before := in(s.name)
			_, err := domain.Charge{}.Append(append(slices.Clone(history(s.name)), e)...)
			if before.Voids(e) != (err != nil) {
				t.Errorf("%s after %s is void: %t, and legal: %v", name, s.name, before.Voids(e), err)
			}
			if err == nil {
				continue
			}
			voids++
			after := domain.Fold(before, e)
			before.Version++
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("%s after %s (-before +after):\n%s", name, s.name, diff)
			}
			if legs := domain.Postings(in(s.name), e); legs != nil {
				t.Errorf("%s after %s posts %+v", name, s.name, legs)
			}
		}
	}
	if voids == 0 {
		t.Error("no request is void")
	}
	if c := in("succeeded"); c.Voids(gone("re_9", "rp_9", 1)) {
		t.Error("an event of the worker is void")
	}
}

// TestView compares what merchants see of charges, a refund and a dispute with testdata/views.txt.
func TestView(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("elsewhere", 3600))
	var lines []string
	show := func(name string, view any) {
		data, err := json.Marshal(view)
		if err != nil {
			t.Fatal(err)
		}
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
	golden(t, "views.txt", lines)
}
