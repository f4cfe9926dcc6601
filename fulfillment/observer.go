package fulfillment

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// observer records what one of the provider's lists shows of a charge: all that the ledger does not
// have, in one commit. It sends nothing. It reads the list once in a delivery, and again after a lost race:
// another worker may have recorded what the provider has shown since.
//
// If we die here: no commit has ended the delivery; the next worker reads the list again.
// Test: TestDispute/a_read_that_was_interrupted_is_repeated.
type observer struct {
	step    string
	read    func(ctx context.Context, intent string) (changes, error)
	changes changes // of the list that was read after the last lost race; nil if none was
}

// changes adds what a list shows and the ledger does not have.
type changes func(f *findings)

// observerOf returns the observer that an event of the provider asks for; for every other message one
// with nothing to do.
func observerOf(messageType string, provider Provider) *observer {
	switch {
	case isAboutRefunds(messageType):
		return &observer{step: "refund", read: readRefunds(provider)}
	case isAboutDisputes(messageType):
		return &observer{step: "dispute", read: readDisputes(provider)}
	}
	return &observer{}
}

func (o *observer) due(c domain.Charge) task {
	if o.step == "" || c.StepStatus(domain.Payment) != domain.StepDone {
		return task{}
	}
	if found := o.find(c); o.changes != nil && len(found.events) == 0 && found.err == nil {
		return task{}
	}
	return task{o.step, o.run}
}

func (o *observer) run(ctx context.Context, s ledger.Stream) (events []domain.Event, err error) {
	if o.changes == nil {
		if o.changes, err = o.read(ctx, s.Charge.PaymentIntent); err != nil {
			return callFailed(ctx, err, nil)
		}
	}
	found := o.find(s.Charge)
	if len(found.events) > 0 {
		return found.events, nil // the error comes up again once they are recorded
	}
	return nil, found.err
}

func (o *observer) find(c domain.Charge) *findings {
	found := &findings{charge: c}
	if o.changes != nil {
		o.changes(found)
	}
	return found
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
	refund := domain.RefundEndedBy(e.Event)
	if refund == "" || refund == r.delivery.OrderingKey {
		return
	}
	inbox.Append(b, ChargeReceiver, inbox.Message{
		ID: "ended:" + refund, Type: TypeRefundEnded, OrderingKey: refund, Partition: s.Charge.MerchantID, Payload: s.EncodeEnvelope(e),
	})
}
