package fulfillment

import (
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// TypeResend is the type of a message that requests one more delivery of a webhook. It is
// no event's, so it has no version.
const TypeResend = "webhook.resend"

const resendPrefix = "resend:"

// WebhookEvent is an event about which the merchant gets a webhook.
type WebhookEvent struct {
	EventID    uuid.UUID `json:"event_id"` // the webhook-id
	ChargeID   string    `json:"charge_id"`
	MerchantID string    `json:"merchant_id"`

	Stored   string `json:"-"` // the name of the event in the ledger
	Version  int    `json:"-"`
	Notified bool   `json:"-"` // the merchant has received the webhook
}

const insertResend = `
insert into webhook_resends
       (resend_id, event_id, charge_id, merchant_id, requested_by)
values ($1, $2, $3, $4, $5)`

// Resend queues one more delivery of an event's webhook, under the same webhook-id and
// with the same body, to the merchant's endpoint. One commit stores a row that
// stays, and a message in the inbox that is retried like any other and may become a dead
// letter. id is new for each resend, actor is the operator. A webhook that the merchant has
// received goes to ResendReceiver, behind which no other webhook waits; one that it has not
// received goes to NotificationReceiver, in its turn among those of its charge.
//
// If we die here: before the commit nothing is stored, after it a worker delivers; an
// operator who does not know repeats the command, and the merchant knows the repeated
// webhook by its id.
// Test: TestWebhooksResend in cmd/payonce.
func Resend(b *pgx.Batch, e WebhookEvent, id uuid.UUID, actor string) {
	receiver := NotificationReceiver
	if e.Notified {
		receiver = ResendReceiver
	}
	b.Queue(insertResend, id, e.EventID, e.ChargeID, e.MerchantID, actor)
	inbox.Append(b, receiver, inbox.Message{
		ID: resendPrefix + id.String(), Type: TypeResend, OrderingKey: e.ChargeID, Partition: e.MerchantID,
		Payload:  ledger.Envelope{ID: e.EventID.String(), Type: e.Stored, ChargeID: e.ChargeID, Version: e.Version}.Encode(),
		Metadata: map[string]string{"requested_by": actor},
	})
}

const resendDelivered = `
update webhook_resends
   set delivered_at = coalesce(delivered_at, clock_timestamp())
 where resend_id = $1`

// recordResend records that the merchant has received a webhook once more. The first
// delivery counts.
func recordResend(b *pgx.Batch, d *inbox.Delivery) {
	if id, err := uuid.Parse(strings.TrimPrefix(d.ID, resendPrefix)); err == nil {
		b.Queue(resendDelivered, id)
	}
}
