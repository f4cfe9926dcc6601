package operate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// WebhookEvent is an event about which the merchant gets a webhook, and what became of that.
type WebhookEvent struct {
	EventID    uuid.UUID `json:"event_id"` // the webhook-id
	ChargeID   string    `json:"charge_id"`
	MerchantID string    `json:"merchant_id"`
	Type       string    `db:"-" json:"type"` // of the webhook: charge.succeeded, …
	RecordedAt time.Time `json:"recorded_at"` // UTC in database time

	Stored    string `json:"-"` // the name of the event in the ledger
	Version   int    `json:"-"`
	Notified  bool   `json:"-"` // the merchant has received the webhook
	Discarded bool   `json:"-"` // an operator discarded the message of its first delivery
}

const selectWebhookEvents = `
-- operate.selectWebhookEvents
select e.event_id,
       e.stream_id   as charge_id,
       e.merchant_id,
       e.type        as stored,
       e.version,
       e.recorded_at at time zone 'UTC' as recorded_at,
       exists (
         select
           from ledger_events n
          where n.stream_id = e.stream_id
            and n.type like 'merchant.notified.v%'
            and n.data ->> 'event_id' = e.event_id::text) as notified,
       coalesce((
         select i.status
           from inbox i
          where i.receiver = 'notification'
            and i.message_id = e.event_id::text) = 'discarded', false) as discarded
  from ledger_events e
 where e.webhook
   and e.event_id in (
         select event_id
           from ledger_events
          where event_id = any ($1::text[]::uuid[])
          union
         select event_id
           from ledger_events
          where stream_id = any ($2))
 order by e.position`

// FindWebhookEvents returns the webhooks of events with these ids, and all those of the charges with these
// ids. Each can be sent again: it was delivered, or an operator discarded its message. Another one, and a
// name that leads to none, is an error.
func FindWebhookEvents(ctx context.Context, q postgres.Querier, names []string) ([]WebhookEvent, error) {
	var events, charges []string
	for _, name := range names {
		if id, err := uuid.Parse(name); err == nil {
			events = append(events, id.String())
		} else {
			charges = append(charges, name)
		}
	}
	rows, _ := q.Query(ctx, selectWebhookEvents, events, charges) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[WebhookEvent])
	if err != nil {
		return nil, fmt.Errorf("read webhook events: %w", err)
	}
	for _, name := range names {
		id, _ := uuid.Parse(name) // of a charge none
		if !slices.ContainsFunc(found, func(e WebhookEvent) bool { return e.ChargeID == name || e.EventID == id }) {
			return nil, fmt.Errorf("%q has no webhook: payonce timeline shows what a charge has", name)
		}
	}
	for i, e := range found {
		if !e.Notified && !e.Discarded {
			return nil, fmt.Errorf("the webhook %s of %s was not delivered: payonce inbox retry repeats a dead letter; give others by their event ids",
				e.EventID, e.ChargeID)
		}
		found[i].Type = domain.EventTypeNamed(e.Stored).Webhook
	}
	return found, nil
}

// Resend queues one more delivery of an event's webhook, under the same webhook-id and with the
// same body, to the merchant's endpoint: a message in the inbox that is retried like any other and
// may become a dead letter. actor is the operator; operator_actions has
// the event, the charge and the message. A webhook that the merchant has received goes to
// fulfillment.ResendReceiver, behind which no other webhook waits; one that it has not received
// goes to fulfillment.NotificationReceiver, in its turn among those of its charge.
//
// If we die here: before the commit nothing is stored, after it a worker delivers; an
// operator who does not know repeats the command, and the merchant knows the repeated
// webhook by its id.
// Test: TestScripts/resend in cmd/payonce.
func Resend(b *pgx.Batch, e WebhookEvent, actor string) {
	receiver := fulfillment.NotificationReceiver
	if e.Notified {
		receiver = fulfillment.ResendReceiver
	}
	inbox.Append(b, receiver, inbox.Message{
		ID: "resend:" + uuid.NewString(), Type: fulfillment.TypeResend, OrderingKey: e.ChargeID, Partition: e.MerchantID,
		Payload:  ledger.Envelope{ID: e.EventID.String(), Type: e.Stored, ChargeID: e.ChargeID, Version: e.Version}.Encode(),
		Metadata: map[string]string{"event_id": e.EventID.String(), "requested_by": actor},
	})
}
