package fulfillment

import (
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// ProviderEvent is the prefix of the types of messages that the provider's webhooks
// brought; the provider's name of the event follows.
const ProviderEvent = "stripe."

// isOfProvider reports whether messages of a type are events of the provider.
func isOfProvider(messageType string) bool { return strings.HasPrefix(messageType, ProviderEvent) }

// isAboutRefunds reports whether messages of a type are events of the provider about a refund. API
// versions of the provider name them differently.
func isAboutRefunds(messageType string) bool {
	name, ok := strings.CutPrefix(messageType, ProviderEvent)
	return ok && (strings.HasPrefix(name, "refund.") || name == "charge.refund.updated" || name == "charge.refunded")
}

func isAboutDisputes(messageType string) bool {
	return strings.HasPrefix(messageType, ProviderEvent+"charge.dispute.")
}

// isAboutCharge reports whether the receiver of charges takes messages of a type.
func isAboutCharge(messageType string) bool {
	return domain.EventTypeNamed(messageType).Request || messageType == TypeRefundEnded ||
		strings.HasPrefix(messageType, ProviderEvent+"payment_intent.") || isAboutRefunds(messageType) || isAboutDisputes(messageType)
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
