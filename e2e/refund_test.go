package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testrun"
)

const refusedRefund = "pm_card_refundFail" // captures; its refund fails

// refund is what the API shows.
type refund struct {
	ID       string `json:"id"`
	ChargeID string `json:"charge_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Status   string `json:"status"`
}

// refundRequest asks for a refund under a new key; of all that is left where
// amount is 0.
func refundRequest(chargeID string, amount int64) request {
	body := []byte(`{"reason":"returned"}`)
	if amount > 0 {
		body = fmt.Appendf(nil, `{"amount":%d}`, amount)
	}
	return request{path: "/v1/charges/" + chargeID + "/refunds", key: "key-" + unique(), body: body}
}

// refund asks for a refund, which must be accepted.
func (d *deployment) refund(t *testing.T, chargeID string, amount int64) refund {
	t.Helper()
	got := d.insist(t, refundRequest(chargeID, amount))
	var r refund
	if err := json.Unmarshal(got.Body, &r); err != nil || got.Status != http.StatusAccepted || r.Status != "pending" {
		t.Fatalf("answered %d %s, want 202 and a pending refund", got.Status, got.Body)
	}
	if location := "/v1/charges/" + r.ChargeID + "/refunds/" + r.ID; got.Header.Get("Location") != location {
		t.Errorf("Location is %q, want %q", got.Header.Get("Location"), location)
	}
	return r
}

// awaitRefund waits until a refund has its outcome.
func (d *deployment) awaitRefund(t *testing.T, r refund) refund {
	t.Helper()
	got := r
	await.Progress(t, "refund "+r.ID+" has its outcome", func() (string, bool) {
		read, err := d.client.do(t.Context(), request{method: http.MethodGet, path: "/v1/charges/" + r.ChargeID + "/refunds/" + r.ID})
		done := err == nil && read.Status == http.StatusOK && json.Unmarshal(read.Body, &got) == nil && got.Status != "pending"
		return d.messagesOf(t, r.ChargeID), done
	})
	return got
}

// paid is a charge of 1000 that succeeded.
func (d *deployment) paid(t *testing.T) charge {
	t.Helper()
	c := d.process(t, newOrder(visa))
	if c.Status != "succeeded" {
		t.Fatalf("the charge is %s", c.Status)
	}
	return c
}

func (d *deployment) mustBe(t *testing.T, chargeID, status string, refunded int64) {
	t.Helper()
	var c struct {
		Status         string `json:"status"`
		AmountRefunded int64  `json:"amount_refunded"`
	}
	d.get(t, "/v1/charges/"+chargeID, &c)
	if c.Status != status || c.AmountRefunded != refunded {
		t.Errorf("the charge is %s with %d refunded, want %s with %d", c.Status, c.AmountRefunded, status, refunded)
	}
}

func refundInParts(t *testing.T, d *deployment) {
	t.Helper()
	c := d.paid(t)
	first := d.awaitRefund(t, d.refund(t, c.ID, 400))
	testrun.Same(t, "refund", refund{ID: first.ID, ChargeID: c.ID, Amount: 400, Currency: "USD", Status: "succeeded"}, first)
	d.mustBe(t, c.ID, "partially_refunded", 400)
	over := refundRequest(c.ID, 601)
	for range 2 {
		got := d.do(t, over)
		mustBeProblem(t, got, http.StatusUnprocessableEntity, "refund-exceeds-captured")
	}
	rest := d.awaitRefund(t, d.refund(t, c.ID, 0))
	if rest.Amount != 600 || rest.Status != "succeeded" {
		t.Errorf("the rest is %+v", rest)
	}
	d.mustBe(t, c.ID, "refunded", 1000)
	got := d.do(t, refundRequest(c.ID, 0))
	mustBeProblem(t, got, http.StatusUnprocessableEntity, "refund-exceeds-captured")

	var page struct {
		Data []refund `json:"data"`
	}
	d.get(t, "/v1/charges/"+c.ID+"/refunds", &page)
	testrun.Same(t, "refunds", []refund{first, rest}, page.Data)
	testrun.Same(t, "balances after all went back", []string{"fee_revenue:payonce:USD -30", "merchant_payable:" + d.merchantOf(t, c.ID) + ":USD 30"}, openBalances(t, d, c.ID))
}
