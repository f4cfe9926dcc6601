package fulfillment

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/google/uuid"
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
// Test: TestDecides/Dispute/a_read_that_was_interrupted_is_repeated.
type observer struct {
	provider Provider
	list     string // "refund" or "dispute"; empty if the message asks for none
	done     bool   // the list was read, and nothing is wrong with it
}

// observedBy is the list that a message asks for, if it is an event of the provider about refunds,
// which API versions of the provider name differently, or about disputes.
func observedBy(messageType string) string {
	for _, o := range []struct{ event, list string }{
		{"refund.", "refund"}, {"charge.refund.updated", "refund"}, {"charge.refunded", "refund"}, {"charge.dispute.", "dispute"},
	} {
		if strings.HasPrefix(messageType, ProviderEvent+o.event) {
			return o.list
		}
	}
	return ""
}

func (o *observer) due(c domain.Charge) task {
	if o.list == "" || o.done || c.StepStatus(domain.Payment) != domain.StepDone {
		return task{}
	}
	return task{o.list, o.run, func() { o.done = false }}
}

func (o *observer) run(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
	found := &findings{charge: s.Charge}
	var err error
	if o.list == "refund" {
		err = observe(found, o.provider.Refunds(ctx, s.Charge.PaymentIntent), observeRefunds)
	} else {
		err = observe(found, o.provider.Disputes(ctx, s.Charge.PaymentIntent), observeDisputes)
	}
	if err != nil {
		return callFailed(ctx, err, nil)
	}
	o.done = found.err == nil
	return found.events, found.err
}

func observe[T any](found *findings, list iter.Seq2[T, error], add func(*findings, []T)) error {
	all, err := collect(list)
	if err == nil {
		add(found, all)
	}
	return err
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

// Reread queues inbox messages that make a worker read the charge's refunds and disputes from the
// provider. They wait while the charge's merchant is paused.
func Reread(b *pgx.Batch, charge ledger.Owner) {
	for _, name := range []string{"refund.updated", "charge.dispute.updated"} {
		inbox.Append(b, ChargeReceiver, inbox.Message{
			ID: "reread_" + uuid.NewString(), Type: ProviderEvent + name,
			OrderingKey: charge.StreamID, Partition: charge.MerchantID, Payload: []byte("{}"),
		})
	}
}
