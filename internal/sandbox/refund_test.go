package sandbox_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

func TestCreateRefund(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})

	t.Run("parts of a capture are refunded until none is left", func(t *testing.T) {
		t.Parallel()
		id := f.captured("pm_card_visa")
		a := f.post("/v1/refunds", "", "payment_intent", id, "amount", "400", "reason", "requested_by_customer", "metadata[refund_id]", "re_9")
		a.want(t, http.StatusOK, map[string]any{
			"object": "refund", "status": "succeeded", "amount": 400.0, "currency": "eur", "payment_intent": id,
			"reason": "requested_by_customer", "metadata": map[string]any{"refund_id": "re_9"},
		})
		if !strings.HasPrefix(a.text("id"), "re_") || f.get("/v1/refunds/"+a.text("id")).raw != a.raw {
			t.Errorf("the refund retrieved is not the refund created: %s", a.raw)
		}
		f.post("/v1/refunds", "", "payment_intent", id, "amount", "601").
			want(t, http.StatusBadRequest, map[string]any{"error.type": "invalid_request_error", "error.param": "amount"})
		f.post("/v1/refunds", "", "charge", a.text("charge")).
			want(t, http.StatusOK, map[string]any{"status": "succeeded", "amount": 600.0, "payment_intent": id})
		f.post("/v1/refunds", "", "payment_intent", id).
			want(t, http.StatusBadRequest, map[string]any{"error.code": "charge_already_refunded"})
	})

	t.Run("an intent that captured nothing is not refunded", func(t *testing.T) {
		t.Parallel()
		f.post("/v1/refunds", "", "payment_intent", f.create("pm_card_visa")).
			want(t, http.StatusBadRequest, map[string]any{"error.type": "invalid_request_error", "error.param": "payment_intent"})
	})

	t.Run("the refund of pm_card_refundFail fails and returns nothing", func(t *testing.T) {
		t.Parallel()
		id := f.captured("pm_card_refundFail")
		for range 2 {
			f.post("/v1/refunds", "", "payment_intent", id, "amount", "1000", "metadata[refund_id]", "re_never").
				want(t, http.StatusOK, map[string]any{"status": "failed", "failure_reason": "expired_or_canceled_card"})
		}
		for _, r := range f.books().Refunds {
			if r.Reference == "re_never" {
				t.Errorf("the books show a failed refund: %+v", r)
			}
		}
	})

	t.Run("concurrent refunds never exceed the capture", func(t *testing.T) {
		t.Parallel()
		id := f.captured("pm_card_visa")
		counts := statuses(f.concurrently(10, func(int) (answered, error) {
			return f.tryPost("/v1/refunds", "", "payment_intent", id, "amount", "300")
		}))
		if counts[200] != 3 || counts[400] != 7 {
			t.Errorf("answers %v", counts)
		}
	})
}

func TestLists(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	var intents, refunds []string
	unrefunded := f.create("")
	id, other := f.captured("pm_card_visa"), f.captured("pm_card_visa")
	intents = append(intents, unrefunded, id, other)
	for range 3 {
		intents = append(intents, f.create(""))
		refunds = append(refunds, f.post("/v1/refunds", "", "payment_intent", id, "amount", "10").text("id"))
	}
	f.post("/v1/refunds", "", "payment_intent", other)

	for name, tc := range map[string]struct {
		path string
		all  []string
	}{
		"payment intents":          {"/v1/payment_intents?limit=2", intents},
		"the refunds of an intent": {"/v1/refunds?limit=2&payment_intent=" + id, refunds},
	} {
		t.Run(name+" come newest first, page by page", func(t *testing.T) {
			t.Parallel()
			var seen []string
			for more, cursor := true, ""; more; {
				a := f.get(tc.path + cursor)
				a.want(t, http.StatusOK, map[string]any{"object": "list", "url": strings.Split(tc.path, "?")[0]})
				data, _ := a.at("data").([]any)
				for _, entry := range data {
					member, _ := entry.(map[string]any)
					last, _ := member["id"].(string)
					seen = append(seen, last)
					cursor = "&starting_after=" + last
				}
				more, _ = a.at("has_more").(bool)
				if len(data) == 0 || len(data) > 2 {
					t.Fatalf("a page of %d", len(data))
				}
			}
			slices.Reverse(seen)
			testrun.Same(t, "ids", tc.all, seen)
		})
	}
}
