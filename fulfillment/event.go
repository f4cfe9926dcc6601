package fulfillment

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

const (
	// ProviderEvent is the prefix of the types of messages that the provider's webhooks
	// brought; the provider's name of the event follows.
	ProviderEvent = "stripe."

	// unresolved is in the ordering key of an event that names only an object of the
	// provider's; the object's id follows.
	unresolved = "stripe:"
)

// isAboutRefunds reports whether messages of a type are events of the provider about a refund.
// The provider has had several names for it.
func isAboutRefunds(messageType string) bool {
	name, ok := strings.CutPrefix(messageType, ProviderEvent)
	return ok && (strings.HasPrefix(name, "refund.") || name == "charge.refund.updated" || name == "charge.refunded")
}

// isAboutDisputes reports whether messages of a type are events of the provider about a dispute.
func isAboutDisputes(messageType string) bool {
	return strings.HasPrefix(messageType, ProviderEvent+"charge.dispute.")
}

// isAboutCharge reports whether messages of a type are about a charge: a request, or an event of
// the provider about a payment, a refund or a dispute.
func isAboutCharge(messageType string) bool {
	return domain.EventTypeNamed(messageType).Request ||
		strings.HasPrefix(messageType, ProviderEvent+"payment_intent.") || isAboutRefunds(messageType) || isAboutDisputes(messageType)
}

// resolve handles an event whose ordering key names no charge. It reads the object from the
// provider, and puts the event into the inbox of the object's charge.
//
// If we die here: the message of the charge and the end of the delivery are one commit.
// Test: TestThinEvent.
func (f *Fulfillment) resolve(ctx context.Context, d *inbox.Delivery) error {
	id, thin := strings.CutPrefix(d.OrderingKey, unresolved)
	var charge ledger.Owner
	err := ledger.ErrNotFound
	if thin {
		collection := "refunds"
		switch {
		case isAboutDisputes(d.Type):
			collection = "disputes"
		case d.Type == ProviderEvent+"charge.refunded":
			collection = "charges"
		}
		var intent string
		intent, err = f.services.Provider.IntentOf(ctx, collection, id)
		if _, rejected := errors.AsType[*stripe.RejectedError](err); rejected {
			err = ledger.ErrNotFound // the provider does not have it
		} else if err != nil {
			_, err = callFailed(ctx, err, nil)
			return err
		} else {
			charge, err = ledger.FindByPaymentIntent(ctx, f.db, domain.Provider, intent)
		}
	}
	if errors.Is(err, ledger.ErrNotFound) {
		f.log.InfoContext(ctx, "provider event of an unknown charge", "message_id", d.ID, "charge_id", d.OrderingKey, "type", d.Type)
		return nil
	}
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	inbox.Accept(b, ChargeReceiver, inbox.Message{
		ID: d.ID + "/" + charge.StreamID, Type: d.Type, OrderingKey: charge.StreamID, Partition: charge.MerchantID,
		Payload: d.Payload, Metadata: d.Metadata,
	})
	return d.Commit(ctx, f.db, b)
}

// Reread queues inbox messages that make a worker read the charge's refunds and disputes from the
// provider. They wait while the charge's merchant is paused.
func Reread(b *pgx.Batch, charge ledger.Owner) {
	for _, name := range []string{"refund.updated", "charge.dispute.updated"} {
		inbox.Accept(b, ChargeReceiver, inbox.Message{
			ID: "reread_" + uuid.NewString(), Type: ProviderEvent + name,
			OrderingKey: charge.StreamID, Partition: charge.MerchantID, Payload: []byte("{}"),
		})
	}
}
