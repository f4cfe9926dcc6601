package fulfillment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

// NotificationReceiver is the receiver that tells merchants about outcomes. It
// has claims of its own, so a dead shop blocks no charge.
const NotificationReceiver = "notification"

// Notification handles the messages of NotificationReceiver and ResendReceiver.
type Notification struct {
	DB     *postgres.DB
	Reader *Reader
	Sender *webhook.Sender
}

// webhookBody is the body that a merchant gets. The id is the event's, the same at
// every delivery, and goes into the webhook-id header too.
type webhookBody struct {
	ID        string    `json:"id"`
	Type      string    `json:"type"`
	CreatedAt time.Time `json:"created_at"`
	Data      any       `json:"data"` // the charge or the refund, as it was then
}

// subject is what the newest event of the stream is the outcome of.
func subject(past ledger.Stream) any {
	c := past.Charge
	for _, r := range c.Refunds {
		if r.OutcomeVersion == c.Version || r.ReversalVersion == c.Version {
			return c.RefundView(r)
		}
	}
	return past.View()
}

// Notify is the inbox handler that delivers the webhook about one outcome, the
// charge's or a refund's, and records it. The merchant is told of a charge's
// outcomes in their order. A message of TypeResend delivers it also if the
// merchant was told before, and the record is then that of the wish.
//
// If we die here: before the merchant took it, it is delivered again; after it,
// and before the commit, it is delivered again under the same webhook-id, by
// which the merchant knows it.
// Test: e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (n *Notification) Notify(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
	envelope, err := ledger.Open(d.Payload)
	if err != nil {
		return inbox.Complete, &inbox.ParkError{Err: err}
	}
	delivered := false
	return again(ctx, n.Reader, envelope.ChargeID, envelope.Version, func(s ledger.Stream) (inbox.Result, error) {
		outcome := s.At(envelope.Version)
		kind := domain.EventTypeNamed(outcome.Type).Webhook
		if kind == "" {
			return inbox.Complete, &inbox.ParkError{Err: fmt.Errorf("message %s names a %s of %s, which is no outcome", d.ID, outcome.Type, s.ID)}
		}
		if d.Type != TypeResend && !s.Charge.NeedsWebhook(outcome.Version) {
			return inbox.Complete, nil
		}
		if !delivered { // a lost race for the version is no reason to send again
			if err := n.deliver(ctx, s, outcome, kind); err != nil {
				return inbox.Complete, err
			}
			delivered = true
		}
		return n.record(ctx, d, s, domain.NotifyMerchant{EventID: outcome.ID.String(), Type: kind, Version: outcome.Version})
	})
}

func (n *Notification) deliver(ctx context.Context, s ledger.Stream, outcome ledger.Recorded, kind string) error {
	endpoint, err := n.Reader.endpoint(ctx, s.Charge.MerchantID)
	if errors.Is(err, merchants.ErrNoWebhook) {
		return &inbox.ParkError{Err: err} // there was one when the charge was accepted
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
	err = n.Sender.Deliver(ctx, webhook.Message{
		Merchant: s.Charge.MerchantID, URL: endpoint.URL, Secrets: endpoint.Secrets, ID: outcome.ID.String(), Body: body,
	})
	var forbidden *webhook.TargetError
	var busy *webhook.BusyError
	var undelivered *webhook.DeliveryError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &forbidden):
		return &inbox.ParkError{Err: err}
	case errors.As(err, &busy):
		return &inbox.WaitError{Untried: true, Err: err} // the merchant's other webhooks are no reason to give this one up
	case errors.As(err, &undelivered):
		return &inbox.WaitError{AtLeast: undelivered.RetryAfter, Err: err}
	default:
		return err
	}
}

func (n *Notification) record(ctx context.Context, d inbox.Delivery, s ledger.Stream, cmd domain.Command) (inbox.Result, error) {
	events, err := domain.Decide(s.Charge, cmd)
	if err != nil {
		return inbox.Complete, err
	}
	b := &pgx.Batch{}
	if len(events) > 0 {
		if _, err := ledger.Append(b, s, cause(d), events...); err != nil {
			return inbox.Complete, err
		}
	}
	if d.Type == TypeResend {
		resent(b, d)
	}
	inbox.Done(b, d)
	if err := n.DB.Commit(ctx, b); err != nil {
		return inbox.Complete, fmt.Errorf("record the notification of %s: %w", s.ID, err)
	}
	return inbox.Completed, nil
}
