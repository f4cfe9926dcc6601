package ledger

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/payonce/payonce/domain"
)

// webhook is the body of a webhook, and an entry of the feed. The id is that of the event, the
// same at every delivery, and goes into the webhook-id header too.
type webhook struct {
	ID        string    `json:"id"`
	Type      string    `json:"type"`
	CreatedAt time.Time `json:"created_at"`
	Data      any       `json:"data"` // the charge, the refund or the dispute as of the event
}

// Webhook returns the JSON that tells the merchant of the event at a version. The events up to that
// version alone decide its bytes.
func (s Stream) Webhook(version int) ([]byte, error) {
	e := s.At(version)
	body, err := json.Marshal(webhook{
		ID: e.ID.String(), Type: domain.EventTypeNamed(e.Type).Webhook, CreatedAt: e.RecordedAt.UTC(), Data: subject(s.Until(version)),
	})
	if err != nil {
		return nil, fmt.Errorf("encode the webhook about %s: %w", e.ID, err)
	}
	return body, nil
}

// subject is the charge, the refund or the dispute which the newest event of the stream is about.
func subject(past Stream) any {
	c := past.Charge
	if len(c.Refunds)+len(c.Disputes) == 0 {
		return past.View()
	}
	about := domain.Details(past.Head().Event)
	refund, _ := about["refund_id"].(string)
	dispute, _ := about["dispute_id"].(string)
	if r, found := c.Refund(refund); found {
		return c.RefundView(r)
	}
	if d, found := c.Dispute(dispute); found {
		return c.DisputeView(d)
	}
	return past.View()
}
