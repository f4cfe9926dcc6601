package sandbox_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testrun"
)

func TestBooks_showWhatHappenedUnderTheCallersReferences(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{ShopSecret: shopSecret, ProcessingTime: time.Hour})
	books := func() any { return f.control(http.MethodGet, "/books", "").object }
	testrun.Same(t, "books before anything happened", any(members{
		"intents": []any{}, "captures": []any{}, "refunds": []any{}, "disputes": []any{}, "notifications": []any{},
		"requests": 0.0, "duplicates_suppressed": 0.0,
	}), books())
	id := f.captured("pm_card_visa")
	for range 3 {
		f.post("/v1/refunds", "r", "payment_intent", id, "amount", "400", "metadata[refund_id]", "re_1")
	}
	open := f.post(intents, "", "amount", "500", "currency", "USD", "payment_method", "pm_card_processing", "confirm", "true").text("id")
	for range 2 {
		f.must(f.notify("msg_1", notice("ch_1")))
	}
	capture := members{"reference": "ch_1", "charge_reference": "", "payment_intent": id, "amount": 1000.0, "currency": "eur"}
	last := members{"reference": "", "charge_reference": "", "id": open, "status": "processing", "amount": 500.0, "currency": "usd", "captures": 0.0}
	want := members{
		"intents": []any{
			members{"reference": "ch_1", "charge_reference": "", "id": id, "status": "succeeded", "amount": 1000.0, "currency": "eur", "captures": 1.0},
			last,
		},
		"captures": []any{capture},
		"refunds":  []any{members{"reference": "re_1", "payment_intent": id, "amount": 400.0}},
		"disputes": []any{},
		"notifications": []any{members{
			"webhook_id": "msg_1", "reference": "ch_1", "type": "charge.succeeded", "deliveries": 2.0, "effects": 1.0,
		}},
		"requests": 6.0, "duplicates_suppressed": 2.0,
	}
	testrun.Same(t, "books", any(want), books())
	f.pass(time.Hour) // a processing intent that is due is settled
	last["status"], last["captures"] = "succeeded", 1.0
	want["captures"] = []any{capture, members{"reference": "", "charge_reference": "", "payment_intent": open, "amount": 500.0, "currency": "usd"}}
	testrun.Same(t, "books an hour later", any(want), books())
}

// TestDashboardRefundsAndDisputes_areListedAndSent: disputes and refunds of the dashboard are in the lists, in
// `GET /books` and in signed events.
func TestDashboardRefundsAndDisputes_areListedAndSent(t *testing.T) {
	t.Parallel()
	r := receive(t)
	f := start(t, sandbox.Options{WebhookURL: r.URL, WebhookSecret: eventSecret})
	outside := func(path, id, more string) answered {
		return f.control(http.MethodPost, path, fmt.Sprintf(`{"payment_intent":%q%s}`, id, more))
	}
	id, lost := f.captured("pm_card_visa"), f.captured("pm_card_visa")
	opened := outside("/dispute", id, "")
	opened.want(t, 200, members{"object": "dispute", "status": "needs_response", "amount": 1000.0, "payment_intent": id})
	won := outside("/dispute", id, `,"outcome":"won"`)
	won.want(t, 200, members{"id": opened.text("id"), "status": "won"})
	if n := strings.Count(won.raw, `"balance_transaction"`); n != 2 || f.get("/v1/disputes/"+won.text("id")).raw != won.raw {
		t.Errorf("%d balance transactions: %s", n, won.raw)
	}
	for _, outcome := range []string{"lost", "won", "lost"} {
		outside("/dispute", lost, `,"outcome":"`+outcome+`"`).want(t, 200, members{"status": outcome})
	}
	if listed := f.get("/v1/disputes?payment_intent=" + lost); strings.Count(listed.raw, `"balance_transaction"`) != 3 || strings.Count(listed.raw, `"dispute"`) != 1 {
		t.Errorf("listed: %s", listed.raw)
	}
	for _, again := range []string{"", `,"outcome":"won"`} {
		outside("/dispute", id, again).want(t, 200, members{"id": won.text("id"), "status": "won"})
	}

	made := outside("/refund", id, `,"amount":400`)
	made.want(t, 200, members{"object": "refund", "status": "succeeded", "amount": 400.0, "metadata": members{}})
	outside("/refund", id, `,"amount":400`).want(t, 200, members{"id": made.text("id")})
	outside("/refund", id, `,"amount":601`).want(t, 400, members{"error.param": "amount"})
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
			f.control(http.MethodPost, path, body).want(t, 400, nil)
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
