package sandbox_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

// TestDashboardRefundsAndDisputes_areListedAndSent: disputes and refunds of the dashboard are in the lists, in `GET /books` and in
// signed events.
func TestDashboardRefundsAndDisputes_areListedAndSent(t *testing.T) {
	t.Parallel()
	r := receive(t)
	f := start(t, sandbox.Options{WebhookURL: r.URL, WebhookSecret: eventSecret})
	outside := func(path, id, more string) answered {
		return f.control(http.MethodPost, path, fmt.Sprintf(`{"payment_intent":%q%s}`, id, more))
	}
	id, lost := f.captured("pm_card_visa"), f.captured("pm_card_visa")
	opened := outside("/dispute", id, "")
	opened.want(t, http.StatusOK, map[string]any{"object": "dispute", "status": "needs_response", "amount": 1000.0, "payment_intent": id})
	won := outside("/dispute", id, `,"outcome":"won"`)
	won.want(t, http.StatusOK, map[string]any{"id": opened.text("id"), "status": "won"})
	if n := strings.Count(won.raw, `"balance_transaction"`); n != 2 || f.get("/v1/disputes/"+won.text("id")).raw != won.raw {
		t.Errorf("%d balance transactions: %s", n, won.raw)
	}
	outside("/dispute", lost, `,"outcome":"lost"`).want(t, http.StatusOK, map[string]any{"status": "lost"})
	outside("/dispute", lost, `,"outcome":"won"`).want(t, http.StatusOK, map[string]any{"status": "won"})
	outside("/dispute", lost, `,"outcome":"lost"`).want(t, http.StatusOK, map[string]any{"status": "lost"})
	if listed := f.get("/v1/disputes?payment_intent=" + lost); strings.Count(listed.raw, `"balance_transaction"`) != 3 || strings.Count(listed.raw, `"dispute"`) != 1 {
		t.Errorf("listed: %s", listed.raw)
	}

	for _, again := range []string{"", `,"outcome":"won"`} {
		outside("/dispute", id, again).want(t, http.StatusOK, map[string]any{"id": won.text("id"), "status": "won"})
	}

	made := outside("/refund", id, `,"amount":400`)
	made.want(t, http.StatusOK, map[string]any{"object": "refund", "status": "succeeded", "amount": 400.0, "metadata": map[string]any{}})
	outside("/refund", id, `,"amount":400`).want(t, http.StatusOK, map[string]any{"id": made.text("id")})
	outside("/refund", id, `,"amount":601`).want(t, http.StatusBadRequest, map[string]any{"error.param": "amount"})
	refunds := f.books().Refunds
	if len(refunds) != 1 || refunds[0].Reference != made.text("id") || refunds[0].PaymentIntent != id {
		t.Errorf("the books have %+v", refunds)
	}

	open := f.create("pm_card_visa")
	for path, bodies := range map[string][]string{
		"/dispute": {``, `{}`, `{"payment_intent":"` + open + `"}`, `{"payment_intent":"` + id + `","outcome":"draw"}`},
		"/refund":  {``, `{"payment_intent":"pi_none"}`, `{"payment_intent":"` + open + `"}`, `{"payment_intent":"` + id + `","amount":-1}`},
	} {
		for _, body := range bodies {
			if a := f.control(http.MethodPost, path, body); a.status/100 != 4 {
				t.Errorf("%s %s: answered %d %s", path, body, a.status, a.raw)
			}
		}
	}

	want := []string{
		"payment_intent.created", "payment_intent.succeeded", "payment_intent.created", "payment_intent.succeeded", "payment_intent.created",
		"charge.dispute.created", "charge.dispute.funds_withdrawn", "charge.dispute.closed", "charge.dispute.funds_reinstated",
		"charge.dispute.created", "charge.dispute.funds_withdrawn", "charge.dispute.closed",
		"charge.dispute.closed", "charge.dispute.funds_reinstated", "charge.dispute.closed", "charge.dispute.funds_withdrawn", "charge.refunded",
	}
	r.await(len(want))
	r.mu.Lock()
	defer r.mu.Unlock()
	testrun.Same(t, "types", want, r.types, cmpopts.SortSlices(strings.Compare))
}
