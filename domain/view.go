package domain

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// View is a charge as merchants see it: the answer of the API and the data of a webhook.
type View struct {
	ID             string            `json:"id"`
	OrderID        string            `json:"order_id"`
	Amount         int64             `json:"amount"`
	AmountRefunded int64             `json:"amount_refunded"`
	Currency       Currency          `json:"currency"`
	Status         Status            `json:"status"`
	Steps          []StepState       `json:"steps"`
	NextAction     *NextAction       `json:"next_action,omitempty"` // while the charge requires one
	Failure        *Failure          `json:"failure"`
	Metadata       map[string]string `json:"metadata"`
	CreatedAt      time.Time         `json:"created_at"`
	ExpiresAt      time.Time         `json:"expires_at,omitzero"`
}

// NextAction is what the merchant has to do: to send the customer to a page.
type NextAction struct {
	Type string `json:"type"`
	URL  string `json:"url"`
}

// View shows the charge. createdAt is when its first event occurred.
func (c Charge) View(createdAt time.Time) View {
	metadata := c.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	var next *NextAction
	if c.Action != nil {
		next = &NextAction{Type: "redirect_to_url", URL: c.Action.URL}
	}
	return View{
		ID: c.ID, OrderID: c.OrderID, Amount: c.Amount, AmountRefunded: c.AmountRefunded(), Currency: c.Currency,
		Status: c.Status, Steps: slices.Clone(c.Steps), NextAction: next, Failure: c.Failure,
		Metadata: metadata, CreatedAt: createdAt.UTC(), ExpiresAt: c.ExpiresAt,
	}
}

// RefundView is a refund as merchants see it.
type RefundView struct {
	ID       string       `json:"id"`
	ChargeID string       `json:"charge_id"`
	Amount   int64        `json:"amount"`
	Currency Currency     `json:"currency"`
	Status   RefundStatus `json:"status"`
}

// RefundView shows a refund of the charge.
func (c Charge) RefundView(r Refund) RefundView {
	return RefundView{ID: r.ID, ChargeID: c.ID, Amount: r.Amount, Currency: c.Currency, Status: r.Status}
}

// DisputeView is a dispute as merchants see it: the data of its webhooks.
type DisputeView struct {
	ID         string        `json:"id"`
	ChargeID   string        `json:"charge_id"`
	Amount     int64         `json:"amount"`
	Withdrawn  int64         `json:"amount_withdrawn"`
	Reinstated int64         `json:"amount_reinstated"`
	Currency   Currency      `json:"currency"`
	Status     DisputeStatus `json:"status"`
	Reason     string        `json:"reason"`
}

// DisputeView shows a dispute of the charge.
func (c Charge) DisputeView(d Dispute) DisputeView {
	return DisputeView{
		ID: d.ID, ChargeID: c.ID, Amount: d.Amount, Withdrawn: d.Withdrawn, Reinstated: d.Reinstated,
		Currency: c.Currency, Status: d.Status, Reason: d.Reason,
	}
}

// Details are the members of an event that an operator may see, under the names of the timeline. A member without a
// detail tag stays hidden: the merchant may have written personal data into it.
func Details(e Event) map[string]any {
	details := map[string]any{}
	v := reflect.ValueOf(e)
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, shown := f.Tag.Lookup("detail")
		value := v.FieldByIndex(f.Index)
		if !shown || value.IsZero() && strings.Contains(f.Tag.Get("json"), ",omit") {
			continue
		}
		details[name] = value.Interface()
		if items, ok := reflect.TypeAssert[[]Item](value); ok {
			lines := make([]string, len(items))
			for i, item := range items {
				lines[i] = fmt.Sprintf("%d %s", item.Quantity, item.SKU)
			}
			details[name] = strings.Join(lines, ", ")
		}
	}
	return details
}
