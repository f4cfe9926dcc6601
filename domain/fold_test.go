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

	t.Run("leaves its argument as it was", func(t *testing.T) {
		t.Parallel()
		for _, s := range states {
			before := in(s.name)
			for _, e := range stored() {
				_ = domain.Fold(before, e)
			}
			for version := range before.Version {
				_ = domain.Fold(before, domain.MerchantNotified{EventID: "e", Version: version})
			}
			if diff := cmp.Diff(in(s.name), before); diff != "" {
				t.Errorf("%s (-want +got):\n%s", s.name, diff)
			}
		}
	})

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

func TestView(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("elsewhere", 3600))
	for state, want := range map[string]string{
		"rejected": `{"id":"ch_1","order_id":"order 1","amount":1000,"amount_refunded":0,"currency":"EUR","status":"failed",` +
			`"steps":[{"name":"inventory","status":"failed"},{"name":"payment","status":"skipped"},{"name":"notification","status":"pending"}],` +
			`"failure":{"code":"out_of_stock","message":"an item of the order is out of stock"},"metadata":{"basket":"7"},"created_at":"2026-03-01T12:00:00Z"}`,
		"declined": `{"id":"ch_1","order_id":"order 1","amount":1000,"amount_refunded":0,"currency":"EUR","status":"failed",` +
			`"steps":[{"name":"inventory","status":"compensated"},{"name":"payment","status":"failed"},{"name":"notification","status":"pending"}],` +
			`"failure":{"code":"card_declined","message":"the card was declined","decline_code":"stolen_card"},"metadata":{"basket":"7"},"created_at":"2026-03-01T12:00:00Z"}`,
		"refunded and notified": `{"id":"ch_1","order_id":"order 1","amount":1000,"amount_refunded":400,"currency":"EUR","status":"partially_refunded",` +
			`"steps":[{"name":"inventory","status":"done"},{"name":"payment","status":"done"},{"name":"notification","status":"done"}],` +
			`"failure":null,"metadata":{"basket":"7"},"created_at":"2026-03-01T12:00:00Z"}`,
	} {
		got, err := json.Marshal(in(state).View(at))
		if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", state, err, diff)
		}
	}
	if view := domain.Fold(domain.Charge{}, domain.ChargeRequested{Amount: 1}).View(at); view.Metadata == nil {
		t.Error("a charge without metadata has no empty object")
	}
	c := in("refund failed")
	r, found := c.Refund("re_1")
	got, err := json.Marshal(c.RefundView(r))
	if want := `{"id":"re_1","charge_id":"ch_1","amount":400,"currency":"EUR","status":"failed"}`; string(got) != want || err != nil || !found {
		t.Errorf("the refund is shown as %s, want %s: %v", got, want, err)
	}
}
