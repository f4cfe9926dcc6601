package fulfillment

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

// observer records what one of the provider's lists shows of a charge: all that the ledger does not
// have, in one commit. It sends nothing. It reads the list once in a delivery, and again after a lost race:
// another worker may have recorded what the provider has shown since.
//
// If we die here: no commit has ended the delivery; the next worker reads the list again.
// Test: TestDispute/a_read_that_was_interrupted_is_repeated.
type observer struct {
	provider Provider
	step     string          // "refund" or "dispute"; empty if a message asks for no observation
	seen     func(*findings) // adds what the list shows and the ledger does not have; nil before it was read
}

// observerOf returns the observer that a message asks for.
func observerOf(messageType string, provider Provider) *observer {
	o := &observer{provider: provider}
	switch {
	case isAboutRefunds(messageType):
		o.step = "refund"
	case isAboutDisputes(messageType):
		o.step = "dispute"
	}
	return o
}

func (o *observer) due(c domain.Charge) task {
	if o.step == "" || c.StepStatus(domain.Payment) != domain.StepDone {
		return task{}
	}
	if found := o.find(c); o.seen != nil && len(found.events) == 0 && found.err == nil {
		return task{}
	}
	return task{o.step, o.run}
}

func (o *observer) run(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
	if o.seen == nil {
		if err := o.read(ctx, s.Charge.PaymentIntent); err != nil {
			return callFailed(ctx, err, nil)
		}
	}
	found := o.find(s.Charge)
	if len(found.events) > 0 {
		return found.events, nil // the error comes up again once they are recorded
	}
	return nil, found.err
}

// read reads the list of a payment intent.
func (o *observer) read(ctx context.Context, intent string) error {
	if o.step == "refund" {
		seen, err := collect(o.provider.Refunds(ctx, intent))
		if err == nil {
			o.seen = (&refunds{seen: seen}).observe
		}
		return err
	}
	seen, err := collect(o.provider.Disputes(ctx, intent))
	if err == nil {
		o.seen = func(f *findings) { observeDisputes(f, seen) }
	}
	return err
}

func (o *observer) find(c domain.Charge) *findings {
	found := &findings{charge: c}
	if o.seen != nil {
		o.seen(found)
	}
	return found
}

// observeDisputes adds the changes of disputes and every movement of their money.
func observeDisputes(f *findings, seen []stripe.Dispute) {
	for _, d := range seen {
		o := domain.ObservedDispute{
			ID: d.ID, Reason: d.Reason, Status: cmp.Or(domain.DisputeStatus(d.Closed), domain.DisputeOpen),
			Amount: domain.Money{Amount: d.Amount, Currency: domain.Currency(d.Currency)},
		}
		for _, m := range d.Moved {
			o.Moved = append(o.Moved, domain.DisputeMovement{
				Transaction: m.ID, Amount: m.Amount, Fee: m.Fee, Currency: domain.Currency(m.Currency),
			})
		}
		events, err := f.charge.ObserveDispute(o)
		f.add(d.ID, events, err)
	}
}

// findings are the events of several objects of the provider. An object that cannot be the charge's keeps
// no other from being recorded; the last one makes the dead letter.
type findings struct {
	charge domain.Charge // with the events
	events []domain.Event
	err    error
}

// add adds the events of an object, which are none if it is recorded, and, if it is not nil, why
// something of the object cannot be recorded.
func (f *findings) add(object string, events []domain.Event, err error) {
	next, illegal := f.charge.Append(events...)
	if illegal == nil {
		f.charge, f.events = next, append(f.events, events...)
	}
	if err = cmp.Or(err, illegal); err != nil {
		f.err = &inbox.DeadLetterError{Err: fmt.Errorf("%s: %w", object, err)}
	}
}

// TypeRefundEnded is the type of a message that wakes the message of a refund which an observer has
// ended. Its payload names the event that ended the refund.
const TypeRefundEnded = "refund.ended"

// wakeRefund queues a message behind that of a refund whose outcome another delivery records: it is
// due then, and does not wait for its next read of the provider's list.
func (r *deliveryRun) wakeRefund(b *pgx.Batch, s ledger.Stream, e ledger.StoredEvent) {
	var refund string
	switch ended := e.Event.(type) {
	case domain.RefundSucceeded:
		refund = ended.RefundID
	case domain.RefundFailed:
		refund = ended.RefundID
	}
	if refund == "" || refund == r.delivery.OrderingKey {
		return
	}
	inbox.Append(b, ChargeReceiver, inbox.Message{
		ID: "ended:" + refund, Type: TypeRefundEnded, OrderingKey: refund, Partition: s.Charge.MerchantID, Payload: s.EncodeEnvelope(e),
	})
}
