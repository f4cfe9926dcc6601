package fulfillment

import (
	"context"
	"errors"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

// notification sends the webhook about the event at a version: of the charge, a refund or
// a dispute. It records nothing if the merchant has received the webhook before.
//
// If we die here: nothing is recorded; the next worker sends the webhook, which may be the
// second time, under the same webhook-id, by which the merchant recognizes it.
// Test: TestWalk in e2e.
func (f *Fulfillment) notification(version int) stepFunc {
	delivered := false // in this delivery
	return func(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
		outcome := s.At(version)
		kind := domain.EventTypeNamed(outcome.Type).Webhook
		if !delivered { // a lost race for the version is no reason to send it again
			if err := f.deliver(ctx, s, outcome); err != nil {
				return nil, err
			}
			delivered = true
		}
		if !s.Charge.NeedsWebhook(version) {
			return nil, nil
		}
		return []domain.Event{domain.MerchantNotified{EventID: outcome.ID.String(), Type: kind, Version: version}}, nil
	}
}

func (f *Fulfillment) deliver(ctx context.Context, s ledger.Stream, outcome ledger.StoredEvent) error {
	endpoint, err := f.endpoints(ctx, s.Charge.MerchantID)
	if errors.Is(err, merchants.ErrNoWebhook) {
		return &inbox.DeadLetterError{Err: err} // there was one when the charge was accepted
	}
	if err != nil {
		return err
	}
	body, err := s.Webhook(outcome.Version)
	if err != nil {
		return err
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
