package fulfillment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// charge is the inbox handler of the requests about charges and of the provider's events.
//
// The ordering key of a refund's messages is the refund, that of every other message the charge. Of
// the payload the handler reads only which version of which charge the message is about; of an event of
// the provider only the type.
func (f *Fulfillment) charge(ctx context.Context, d *inbox.Delivery) error {
	pay := &payment{provider: f.services.Provider, now: d.ClaimedAt, timeout: f.services.ActionTimeout}
	r := &deliveryRun{Fulfillment: f, delivery: d, steps: f.steps(pay), cancel: pay.cancel}
	id := d.OrderingKey
	if envelope, err := ledger.DecodeEnvelope(d.Payload); err == nil && !isOfProvider(d.Type) {
		id, r.version = envelope.ChargeID, envelope.Version
	}
	err := r.load(ctx, id)
	if errors.Is(err, ledger.ErrNotFound) && isOfProvider(d.Type) {
		f.log.InfoContext(ctx, "provider event of an unknown charge", "message_id", d.ID, "charge_id", id, "type", d.Type)
		return nil
	}
	if err != nil {
		return err
	}
	r.due = r.dueOf(d.Type)
	return r.process(ctx)
}

// dueOf returns what is due for a message. A refund's own is about that refund alone. Every other
// message brings the charge to its outcome, and then an event of the provider about refunds or
// disputes observes these.
func (r *deliveryRun) dueOf(messageType string) func(domain.Charge) task {
	if r.version > 0 {
		if asked, ok := r.stream.At(r.version).Event.(domain.RefundRequested); ok {
			one := &refunds{provider: r.services.Provider, now: r.delivery.ClaimedAt}
			return func(c domain.Charge) task { return one.due(c, asked.RefundID) }
		}
	}
	observer := observerOf(messageType, r.services.Provider)
	r.readAgain = func() { observer.seen = nil }
	return func(c domain.Charge) task {
		if !c.Terminal() {
			return r.dueStep(c)
		}
		return observer.due(c)
	}
}

// dueStep is the step that is due; a cancellation on request or by a deadline comes before it.
func (r *deliveryRun) dueStep(c domain.Charge) task {
	i := slices.IndexFunc(r.steps, func(s step) bool { return s.name == c.Next() })
	switch {
	case i < 0: // no message of such a charge may end as done
		return task{domain.Payment, func(context.Context, ledger.Stream) ([]domain.Event, error) {
			return nil, fmt.Errorf("charge %s has no outcome after its last step", c.ID)
		}}
	case c.Cancellation(r.delivery.ClaimedAt) != nil:
		return task{"cancel", r.cancel}
	}
	return task{r.steps[i].name, r.steps[i].run}
}
