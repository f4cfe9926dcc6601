package fulfillment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// handleCharge is the inbox handler of the requests about charges and of the provider's events.
//
//	type of the message                     ordering key  what is due
//	charge.requested, cancel_requested      charge        its steps or its cancellation, until it has an outcome
//	stripe.payment_intent.*                 charge        the same
//	stripe.refund.*, stripe.charge.refund*, charge        the same; then the provider's refunds, or its disputes,
//	stripe.charge.dispute.*                               are observed
//	refund.requested                        refund        that refund
//	refund.ended                            refund        nothing
//
// Messages of one ordering key are handled in order. So while the first one of a charge or a refund waits, for the
// customer or the provider, a later one does nothing of its own: as it is stored, it makes the first one due
// (inbox/store.go).
//
// Of the payload the handler reads only which version of which charge the message is about; of an event of
// the provider only the type.
func (f *Fulfillment) handleCharge(ctx context.Context, d *inbox.Delivery) error {
	r, id := &deliveryRun{Fulfillment: f, delivery: d}, d.OrderingKey
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
	provider := f.services.Provider
	if r.version > 0 {
		if asked, ok := r.stream.At(r.version).Event.(domain.RefundRequested); ok {
			r.due = refunder{provider, d.ClaimedAt, asked.RefundID}.due
			return r.process(ctx)
		}
	}
	pay := &payment{provider: provider, now: d.ClaimedAt, timeout: f.services.ActionTimeout}
	steps, observer := f.steps(pay), &observer{provider: provider, list: observedBy(d.Type)}
	r.due = func(c domain.Charge) task {
		if c.HasOutcome() {
			return observer.due(c)
		}
		return dueStep(c, steps, pay)
	}
	return r.process(ctx)
}

// dueStep is the step that is due; a cancellation on request or by a deadline comes before it.
func dueStep(c domain.Charge, steps []step, pay *payment) task {
	i := slices.IndexFunc(steps, func(s step) bool { return s.name == c.Next() })
	switch {
	case i < 0: // a fault, with which no message ends as done
		return task{name: domain.Payment, run: func(context.Context, ledger.Stream) ([]domain.Event, error) {
			return nil, fmt.Errorf("charge %s has no outcome after its last step", c.ID)
		}}
	case c.Cancellation(pay.now) != nil:
		return task{name: "cancel", run: pay.cancelCharge}
	}
	return task{name: steps[i].name, run: steps[i].run}
}

// ProviderEvent is the prefix of the types of messages that the provider's webhooks
// brought; the provider's name of the event follows.
const ProviderEvent = "stripe."

// isOfProvider reports whether messages of a type are events of the provider.
func isOfProvider(messageType string) bool { return strings.HasPrefix(messageType, ProviderEvent) }

// isAboutCharge reports whether the receiver of charges takes messages of a type.
func isAboutCharge(messageType string) bool {
	return domain.EventTypeNamed(messageType).Request || messageType == TypeRefundEnded ||
		strings.HasPrefix(messageType, ProviderEvent+"payment_intent.") || observedBy(messageType) != ""
}
