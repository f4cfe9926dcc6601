package fulfillment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// TypeResend is the type of a message that requests one more delivery of a webhook. It is
// no event's, so it has no version.
const TypeResend = "webhook.resend"

const resendPrefix = "resend:"

// Outcome is an event about which its merchant receives a webhook.
type Outcome struct {
	EventID    uuid.UUID `json:"event_id"` // the webhook-id
	ChargeID   string    `json:"charge_id"`
	MerchantID string    `json:"merchant_id"`
	Type       string    `db:"-" json:"type"` // of the webhook: charge.succeeded, …
	RecordedAt time.Time `json:"recorded_at"`

	Stored    string        `json:"-"` // the name of the event in the ledger
	Version   int           `json:"-"`
	Position  int64         `json:"-"`
	Notified  bool          `json:"-"` // the merchant has received the webhook
	Reachable bool          `json:"-"` // the merchant has an endpoint
	Message   *int64        `json:"-"` // in the inbox
	Status    *inbox.Status `json:"-"` // of the message
}

const outcomeColumns = `e.event_id,
       e.stream_id   as charge_id,
       e.merchant_id,
       e.type        as stored,
       e.version,
       e.position,
       e.recorded_at,
       exists (
         select
           from ledger_events n
          where n.stream_id = e.stream_id
            and n.type like 'merchant.notified.v%'
            and n.data ->> 'event_id' = e.event_id::text) as notified,
       exists (
         select
           from merchants m
          where m.merchant_id = e.merchant_id
            and m.webhook_url is not null) as reachable,
       i.id     as message,
       i.status as status
  from ledger_events e
  left join inbox i
    on i.receiver = 'notification'
   and i.message_id = e.event_id::text
 where e.type ~ '^(charge\.(succeeded|failed|dispute.*)|payment\.action_required|refund\.(succeeded|failed|reversed|observed))\.v'`

const selectOutcomesOf = "select " + outcomeColumns + `
   and (e.event_id = $2 or e.stream_id = $1)
 order by e.position`

// OutcomesOf returns the outcomes that a name means: an event's id, which is the
// webhook-id that the merchant knows, means that event; a charge's means all outcomes of
// the charge and its refunds, in their order.
func OutcomesOf(ctx context.Context, q postgres.Querier, name string) ([]Outcome, error) {
	event, err := uuid.Parse(name)
	if err != nil && !strings.HasPrefix(name, "ch_") {
		return nil, nil
	}
	return readOutcomes(ctx, q, selectOutcomesOf, name, event) // the zero id is no event's
}

// selectOutcomesSince reads a page of outcomes. No index leads to a time, so each page reads
// the ledger from the end of the page before.
const selectOutcomesSince = "select " + outcomeColumns + `
   and e.merchant_id = $1
   and e.recorded_at >= $2
   and e.recorded_at < coalesce($3::timestamptz, 'infinity')
   and e.position > $4
 order by e.position
 limit $5`

// Page is a part of a merchant's outcomes.
type Page struct {
	Merchant     string
	Since, Until time.Time // in database time; Since is included, Until is not; a zero Until is no bound
	After        int64     // the position of the last outcome of the page before; 0 for the first page
	Limit        int
}

// OutcomesSince returns a page of a merchant's outcomes, in the order in which
// they were recorded.
func OutcomesSince(ctx context.Context, q postgres.Querier, p Page) ([]Outcome, error) {
	var until *time.Time
	if !p.Until.IsZero() {
		until = &p.Until
	}
	return readOutcomes(ctx, q, selectOutcomesSince, p.Merchant, p.Since, until, p.After, p.Limit)
}

func readOutcomes(ctx context.Context, q postgres.Querier, sql string, args ...any) ([]Outcome, error) {
	rows, _ := q.Query(ctx, sql, args...) // the rows have its error too
	outcomes, err := pgx.CollectRows(rows, pgx.RowToStructByName[Outcome])
	if err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	for i, o := range outcomes {
		outcomes[i].Type, outcomes[i].RecordedAt = domain.EventTypeNamed(o.Stored).Webhook, o.RecordedAt.UTC()
	}
	return outcomes, nil
}

var (
	errNoEndpoint = errors.New("the merchant has no webhook endpoint any more: give it one with payonce seed, and ask again")
	errNoWebhook  = errors.New("there is no webhook to send again: the merchant had no endpoint when it was asked for, or the message has not been received yet")
	errInProgress = errors.New("the webhook is on its way already")
)

// Refusal is why the webhook is not sent again; nil if it can be. A webhook whose message
// an operator discarded was never sent, and can be.
func (o Outcome) Refusal() error {
	switch {
	case !o.Reachable:
		return errNoEndpoint
	case o.Notified:
		return nil
	case o.Message == nil, *o.Status == inbox.StatusDone:
		return errNoWebhook
	case *o.Status == inbox.StatusDead:
		return fmt.Errorf("the webhook was never delivered, its message is a dead letter: payonce inbox retry %d", *o.Message)
	case *o.Status == inbox.StatusDiscarded:
		return nil
	default:
		return errInProgress
	}
}

const insertResend = `
insert into webhook_resends
       (resend_id, event_id, charge_id, merchant_id, requested_by)
values ($1, $2, $3, $4, $5)`

// Resend queues one more delivery of an outcome's webhook, under the same webhook-id and
// with the same body, to the merchant's present endpoint. One commit stores a row that
// stays, and a message in the inbox that is retried like any other and may become a dead
// letter. id is new for each resend, actor is the operator. A webhook that the merchant has
// received goes to ResendReceiver, behind which no other webhook waits; one that it has not
// received goes to NotificationReceiver, in its turn among those of its charge.
//
// If we die here: before the commit nothing is stored, after it a worker delivers; an
// operator who does not know repeats the command, and the merchant knows the repeated
// webhook by its id.
// Test: TestWebhooksResend in cmd/payonce.
func Resend(b *pgx.Batch, o Outcome, id uuid.UUID, actor string) error {
	payload, err := json.Marshal(ledger.Envelope{ID: o.EventID.String(), Type: o.Stored, ChargeID: o.ChargeID, Version: o.Version})
	if err != nil {
		return fmt.Errorf("encode the resend of %s: %w", o.EventID, err)
	}
	receiver := NotificationReceiver
	if o.Notified {
		receiver = ResendReceiver
	}
	b.Queue(insertResend, id, o.EventID, o.ChargeID, o.MerchantID, actor)
	inbox.Accept(b, receiver, inbox.Message{
		ID: resendPrefix + id.String(), Type: TypeResend, OrderingKey: o.ChargeID, Partition: o.MerchantID,
		Payload: payload, Metadata: map[string]string{"requested_by": actor},
	})
	return nil
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
