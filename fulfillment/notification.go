package fulfillment

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// notification sends the webhook about the event at a version: of the charge, a refund or
// a dispute. It sends one again too (due decides), and then records nothing.
//
// If we die here: nothing is recorded; the next worker sends the webhook, which may be the
// second time, under the same webhook-id, by which the merchant recognizes it.
// Test: TestWalk in e2e.
func (f *Fulfillment) notification(version int) stepFunc {
	delivered := false // in this delivery
	return func(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
		about := s.At(version)
		kind := domain.EventTypeNamed(about.Type).Webhook
		if !delivered { // a lost race for the version is no reason to send it again
			if err := f.deliver(ctx, s, about); err != nil {
				return nil, err
			}
			delivered = true
		}
		if !s.Charge.NeedsWebhook(version) {
			return nil, nil
		}
		return []domain.Event{domain.MerchantNotified{EventID: about.ID.String(), Type: kind, Version: version}}, nil
	}
}

func (f *Fulfillment) deliver(ctx context.Context, s ledger.Stream, about ledger.StoredEvent) error {
	endpoint, err := f.endpoints(ctx, s.Charge.MerchantID)
	if errors.Is(err, merchants.ErrNoWebhook) {
		return &inbox.DeadLetterError{Err: err} // there was one when the charge was accepted
	}
	if err != nil {
		return err
	}
	body, err := s.Webhook(about.Version)
	if err != nil {
		return err
	}
	err = f.services.Webhooks.Deliver(ctx, webhook.Message{
		URL: endpoint.URL, Secrets: endpoint.Secrets, ID: about.ID.String(), Body: body,
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

// subscriber runs after a webhook event.
type subscriber struct {
	name        string // in domain, and of the receiver
	deadLetters inbox.DeadLetters
	run         func(version int) stepFunc // version is that of the event
}

// subscribers run the subscribers of domain's list of the same name. Each has a receiver of its
// own, so none of them holds up another or a charge.
func (f *Fulfillment) subscribers() []subscriber {
	return []subscriber{
		{domain.Notification, inbox.Block, f.notification}, // merchants are notified in order
	}
}

// TypeResend is the type of a message that requests one more delivery of a webhook. It is not
// the type of an event, whose name would end in a version. Package operate queues it.
const TypeResend = "webhook.resend"

// subscriberHandler is the inbox handler of a subscriber.
func (f *Fulfillment) subscriberHandler(to subscriber) inbox.Handler {
	return func(ctx context.Context, d *inbox.Delivery) error {
		envelope, err := ledger.DecodeEnvelope(d.Payload)
		if err != nil {
			return &inbox.DeadLetterError{Err: err}
		}
		r := &deliveryRun{Fulfillment: f, delivery: d, version: envelope.Version}
		if err := r.load(ctx, envelope.ChargeID); err != nil {
			return err
		}
		about := r.stream.At(envelope.Version)
		if domain.EventTypeNamed(about.Type).Webhook == "" {
			return &inbox.DeadLetterError{Err: fmt.Errorf("message %s names a %s of %s, which is no webhook event", d.ID, about.Type, r.stream.ID)}
		}
		run, resend := to.run(about.Version), d.Type == TypeResend
		r.due = func(c domain.Charge) task {
			if !resend && !c.SubscriberPending(to.name, about.Version) {
				return task{}
			}
			return task{name: to.name, run: func(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
				resend = false // it runs once, whether its webhook is recorded or not
				return run(ctx, s)
			}}
		}
		return r.process(ctx)
	}
}

// announce queues the message to a subscriber, into its inbox. A subscriber that the charge does
// not have costs no message.
func (r *deliveryRun) announce(b *pgx.Batch, to subscriber, s ledger.Stream, e ledger.StoredEvent) {
	metadata := map[string]string{outbox.MetadataCausationID: r.delivery.ID}
	for _, name := range []string{outbox.MetadataCorrelationID, outbox.MetadataTraceparent} {
		if value := r.delivery.Metadata[name]; value != "" {
			metadata[name] = value
		}
	}
	inbox.Append(b, to.name, inbox.Message{
		ID: e.ID.String(), Type: e.Type, OrderingKey: s.ID, Partition: s.Charge.MerchantID,
		Payload: s.EncodeEnvelope(e), Metadata: metadata,
	})
}
