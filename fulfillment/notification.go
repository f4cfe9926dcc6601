package fulfillment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

// notification sends the webhook about the outcome at a version: of the charge, a refund or
// a dispute.
// A message of TypeResend sends it also if the merchant received it before.
//
// If we die here: nothing is recorded; the next worker sends the webhook, which may be the
// second time, under the same webhook-id, by which the merchant recognizes it.
// Test: TestWalk in e2e.
func (f *Fulfillment) notification(d *inbox.Delivery, version int) act {
	delivered := false // in this delivery
	return func(ctx context.Context, s ledger.Stream) (decision, error) {
		outcome := s.At(version)
		kind := domain.EventTypeNamed(outcome.Type).Webhook
		if !delivered { // a lost race for the version is no reason to send it again
			if err := f.deliver(ctx, s, outcome, kind); err != nil {
				return decision{}, err
			}
			delivered = true
		}
		notified := decision{command: domain.NotifyMerchant{EventID: outcome.ID.String(), Type: kind, Version: version}}
		if d.Type == TypeResend {
			notified.rows = func(b *pgx.Batch) { recordResend(b, d) }
		}
		return notified, nil
	}
}

// webhookBody is the body of a webhook. The id is that of the event, the same at every
// delivery, and goes into the webhook-id header too.
type webhookBody struct {
	ID        string    `json:"id"`
	Type      string    `json:"type"`
	CreatedAt time.Time `json:"created_at"`
	Data      any       `json:"data"` // the charge, the refund or the dispute as of the outcome
}

func (f *Fulfillment) deliver(ctx context.Context, s ledger.Stream, outcome ledger.Recorded, kind string) error {
	endpoint, err := f.endpoints.Read(ctx, s.Charge.MerchantID)
	if errors.Is(err, merchants.ErrNoWebhook) {
		return &inbox.DeadLetterError{Err: err} // there was one when the charge was accepted
	}
	if err != nil {
		return err
	}
	body, err := json.Marshal(webhookBody{
		ID: outcome.ID.String(), Type: kind, CreatedAt: outcome.RecordedAt.UTC(), Data: subject(s.Until(outcome.Version)),
	})
	if err != nil {
		return fmt.Errorf("encode the webhook about %s: %w", outcome.ID, err)
	}
	err = f.services.Webhooks.Deliver(ctx, webhook.Message{
		URL: endpoint.URL, Secrets: endpoint.Secrets, ID: outcome.ID.String(), Body: body,
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, forbidden := errors.AsType[*webhook.TargetError](err); forbidden {
		return &inbox.DeadLetterError{Err: err}
	}
	if undelivered, ok := errors.AsType[*webhook.DeliveryError](err); ok {
		return &inbox.WaitError{AtLeast: undelivered.RetryAfter, Err: err}
	}
	return err
}

// subject is the charge, the refund or the dispute whose outcome is the newest event of the stream.
func subject(past ledger.Stream) any {
	c := past.Charge
	for _, r := range c.Refunds {
		if r.OutcomeVersion == c.Version || r.ReversalVersion == c.Version {
			return c.RefundView(r)
		}
	}
	for _, d := range c.Disputes {
		if slices.Contains(d.Versions, c.Version) {
			return c.DisputeView(d)
		}
	}
	return past.View()
}
