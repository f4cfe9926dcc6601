package fulfillment

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

// Services are the external services that steps call.
type Services struct {
	// ActionTimeout is how long a payment waits for its customer.
	ActionTimeout time.Duration

	Provider Provider
	Webhooks interface {
		Deliver(ctx context.Context, m webhook.Message) error
	}
}

// steps run the steps of domain's list of the same name, which has their order. Each
// delivery has its own payment, which remembers what the provider answered.
func (f *Fulfillment) steps(pay *payment) []step {
	return []step{
		{name: domain.Inventory, run: f.reserve, queueRows: queueStock},
		{name: domain.Payment, run: pay.run},
	}
}

// step runs one step of a charge.
type step struct {
	name string // in domain

	// run does at external services what is missing of the step, and returns what is to be recorded. It is called again
	// if another writer took the stream's next version and the step is still due: it reads the stream first, and repeats
	// nothing that must not happen twice. It may return events and an error: these are recorded, then that ends the run.
	run stepFunc

	// queueRows, where set, queues the rows of the step beside the ledger. It is called for every event of every step,
	// so stock is returned also if a later step rejects the charge. c is the charge before all events of the decision.
	queueRows func(b *pgx.Batch, c domain.Charge, e domain.Event)
}

// stepFunc reads the stream, calls external services, and returns the events that one commit records.
type stepFunc func(ctx context.Context, s ledger.Stream) ([]domain.Event, error)

// Receiver handles messages of a topic of the outbox, or that commits put into its inbox.
type Receiver struct {
	Name        string
	Topic       string                        // empty: none comes from the outbox
	Takes       func(messageType string) bool // a message of another type waits for a newer worker
	DeadLetters inbox.DeadLetters             // what its dead letters do to the younger messages of their charge
	Handle      inbox.Handler
}

// Receivers are all receivers of the worker.
func (f *Fulfillment) Receivers() []Receiver {
	isResend := func(name string) bool { return name == TypeResend }
	// An operator's resend of a webhook that was never received waits for its turn here.
	isAboutWebhook := func(name string) bool { return domain.EventTypeNamed(name).Webhook != "" || isResend(name) }
	// Every message of a charge reads the same stream, so a dead letter must not hide a
	// cancellation or an event of the provider. A refund has its own key.
	receivers := []Receiver{{ChargeReceiver, domain.Topic, isAboutCharge, inbox.Pass, f.handleCharge}}
	for _, s := range f.subscribers() {
		receivers = append(receivers, Receiver{s.name, "", isAboutWebhook, s.deadLetters, f.subscriberHandler(s)})
	}
	again := subscriber{name: domain.Notification, run: f.notification}
	receivers = append(receivers, Receiver{ResendReceiver, "", isResend, inbox.Pass, f.subscriberHandler(again)})
	for i, r := range receivers {
		receivers[i].Handle = func(ctx context.Context, d *inbox.Delivery) error {
			if !r.Takes(d.Type) { // a newer program wrote it
				return &inbox.WaitError{Err: fmt.Errorf("unknown type of message: %q", d.Type)}
			}
			return r.Handle(ctx, d)
		}
	}
	return receivers
}
