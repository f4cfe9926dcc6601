package fulfillment

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// subscriber runs after a webhook event.
type subscriber struct {
	name        string // in domain, and of the receiver
	deadLetters inbox.DeadLetters
	step        func(version int) stepFunc // version is that of the event
}

// subscribers run the subscribers of domain's list of the same name. Each has a receiver of its
// own, so none of them holds up another or a charge.
func (f *Fulfillment) subscribers() []subscriber {
	return []subscriber{
		{domain.Notification, inbox.Block, f.notification}, // merchants are notified in order
	}
}

// subscriberHandler is the inbox handler of a subscriber.
func (f *Fulfillment) subscriberHandler(to subscriber) inbox.Handler {
	return func(ctx context.Context, d *inbox.Delivery) error {
		envelope, err := ledger.DecodeEnvelope(d.Payload)
		if err != nil {
			return &inbox.DeadLetterError{Err: err}
		}
		quiet := *f
		quiet.OnStep = nil // it reports the steps of charges
		r := &deliveryRun{Fulfillment: &quiet, delivery: d, version: envelope.Version}
		if err := r.load(ctx, envelope.ChargeID); err != nil {
			return err
		}
		about := r.stream.At(envelope.Version)
		if domain.EventTypeNamed(about.Type).Webhook == "" {
			return &inbox.DeadLetterError{Err: fmt.Errorf("message %s names a %s of %s, which is no webhook event", d.ID, about.Type, r.stream.ID)}
		}
		run, again := to.step(about.Version), d.Type == TypeResend
		r.due = func(c domain.Charge) task {
			if !again && !c.SubscriberPending(to.name, about.Version) {
				return task{}
			}
			return task{to.name, func(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
				again = false // a resend is sent once, whether its webhook is recorded or not
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
