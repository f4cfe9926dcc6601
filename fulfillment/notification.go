package fulfillment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/notify"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// NotificationReceiver is the receiver that tells merchants about outcomes. It
// has claims of its own, so a dead shop blocks no charge.
const NotificationReceiver = "notification"

// Notification handles the messages of NotificationReceiver.
type Notification struct {
	DB     *postgres.DB
	Sender *notify.Sender
}

// webhook is the body that a merchant gets. The id is the event's, the same at
// every delivery, and goes into the webhook-id header too.
type webhook struct {
	ID        string      `json:"id"`
	Type      string      `json:"type"`
	CreatedAt time.Time   `json:"created_at"`
	Data      domain.View `json:"data"`
}

// Notify is the inbox handler that delivers the webhook about one outcome and
// records it.
//
// If we die here: before the merchant took it, it is delivered again; after it,
// and before the commit, it is delivered again under the same webhook-id, by
// which the merchant knows it.
// Test: e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (n *Notification) Notify(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
	delivered := false
	return again(ctx, n.DB, d, func(s ledger.Stream) (inbox.Result, error) {
		if s.Charge.Notification != domain.StepPending {
			return inbox.Complete, nil
		}
		envelope, err := ledger.Open(d.Payload)
		if err != nil || envelope.Version > s.Charge.Version {
			return inbox.Complete, &inbox.ParkError{Err: fmt.Errorf("message %s names no event of %s", d.ID, s.ID)}
		}
		outcome := s.At(envelope.Version)
		kind := strings.TrimSuffix(outcome.Type, ".v1")
		if !delivered { // a lost race for the version is no reason to send again
			if err := n.deliver(ctx, s, outcome, kind); err != nil {
				return inbox.Complete, err
			}
			delivered = true
		}
		return n.record(ctx, d, s, domain.NotifyMerchant{EventID: outcome.ID.String(), Type: kind})
	})
}

func (n *Notification) deliver(ctx context.Context, s ledger.Stream, outcome ledger.Recorded, kind string) error {
	endpoint, err := n.endpoint(ctx, s.Charge.MerchantID)
	if errors.Is(err, merchants.ErrNoWebhook) {
		return &inbox.ParkError{Err: err} // there was one when the charge was accepted
	}
	if err != nil {
		return err
	}
	body, err := json.Marshal(webhook{
		ID: outcome.ID.String(), Type: kind, CreatedAt: outcome.RecordedAt.UTC(), Data: s.Until(outcome.Version).View(),
	})
	if err != nil {
		return fmt.Errorf("encode the webhook about %s: %w", outcome.ID, err)
	}
	err = n.Sender.Deliver(ctx, notify.Webhook{
		URL: endpoint.URL, Secret: endpoint.Secret, ID: outcome.ID.String(), Body: body,
	})
	var forbidden *notify.TargetError
	var undelivered *notify.DeliveryError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &forbidden):
		return &inbox.ParkError{Err: err}
	case errors.As(err, &undelivered):
		return &inbox.WaitError{AtLeast: undelivered.RetryAfter, Err: err}
	default:
		return err
	}
}

func (n *Notification) endpoint(ctx context.Context, merchant string) (merchants.Webhook, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return merchants.ReadWebhook(ctx, n.DB, merchant)
}

func (n *Notification) record(ctx context.Context, d inbox.Delivery, s ledger.Stream, cmd domain.Command) (inbox.Result, error) {
	events, err := domain.Decide(s.Charge, cmd)
	if err != nil {
		return inbox.Complete, err
	}
	b := &pgx.Batch{}
	if _, err := ledger.Append(b, s, cause(d), events...); err != nil {
		return inbox.Complete, err
	}
	inbox.Done(b, d)
	if err := n.DB.Commit(ctx, b); err != nil {
		return inbox.Complete, fmt.Errorf("record the notification of %s: %w", s.ID, err)
	}
	return inbox.Completed, nil
}
