package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

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
	testrun.Progress(t, "refund "+r.ID+" has its outcome", func() (string, bool) {
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
