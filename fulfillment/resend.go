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

// TypeResend is the type of a message that wants a webhook delivered once more.
// It is no event's, so it has no version.
const TypeResend = "webhook.resend"

// ResendReceiver is the receiver that tells merchants once more of what they have
// been told. It has claims and an order of its own, so nothing that a merchant
// has not heard waits for it.
const ResendReceiver = "resend"

const resendPrefix = "resend:"

// MetadataRequestedBy names the operator who wants a webhook once more.
const MetadataRequestedBy = "requested_by"

// Outcome is an event that its merchant is told of by a webhook.
type Outcome struct {
	EventID    uuid.UUID `json:"event_id"` // the webhook-id
	ChargeID   string    `json:"charge_id"`
	MerchantID string    `json:"merchant_id"`
	Type       string    `json:"type"` // of the webhook: charge.succeeded, …
	RecordedAt time.Time `json:"recorded_at"`
	// Refusal says why its webhook is not sent again, nil if it can be.
	Refusal error `json:"-"`

	stored   string // its name in the ledger
	version  int
	position int64
	told     bool
}

var (
	errGone   = errors.New("the merchant has no webhook endpoint any more: give it one with payonce seed, and ask again")
	errUntold = errors.New("there is no webhook to send again: the merchant had no endpoint when it was asked for, or the message has not been received yet")
	errOnWay  = errors.New("the webhook is on its way already")
)

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
            and n.data ->> 'event_id' = e.event_id::text) as told,
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
 where e.type ~ '^(charge\.(succeeded|failed)|refund\.(succeeded|failed|reversed))\.v'`

// The name is an event's id, or a charge's.
const selectOutcomesOf = "select " + outcomeColumns + `
   and (e.event_id = $2 or e.stream_id = $1)
 order by e.position`

// OutcomesOf returns the outcomes that a name means: an event's id, which is the
// webhook-id that the merchant knows, means that event; a charge's means all of
// the charge and its refunds, in their order. None if there is no such outcome.
func OutcomesOf(ctx context.Context, q postgres.Querier, name string) ([]Outcome, error) {
	event, err := uuid.Parse(name)
	if err == nil || strings.HasPrefix(name, "ch_") {
		return readOutcomes(ctx, q, selectOutcomesOf, name, event) // the zero one is no event's
	}
	return nil, nil
}

// The time is no index's, so this walks the ledger from where the page before it
// ended.
const selectOutcomesSince = "select " + outcomeColumns + `
   and e.merchant_id = $1
   and e.recorded_at >= $2
   and e.recorded_at < coalesce($3::timestamptz, 'infinity')
   and e.position > $4
 order by e.position
 limit $5`

// Page is a part of a merchant's outcomes. The zero Until is now and later.
type Page struct {
	Merchant     string
	Since, Until time.Time // by the database's clock: Since counts, Until does not
	After        *Outcome  // the last of the page before this one; nil for the first page
	Limit        int
}

// OutcomesSince returns a page of a merchant's outcomes, in the order in which
// they were recorded.
func OutcomesSince(ctx context.Context, q postgres.Querier, p Page) ([]Outcome, error) {
	var until *time.Time
	if !p.Until.IsZero() {
		until = &p.Until
	}
	after := int64(-1)
	if p.After != nil {
		after = p.After.position
	}
	return readOutcomes(ctx, q, selectOutcomesSince, p.Merchant, p.Since, until, after, p.Limit)
}

type outcomeRow struct {
	EventID    uuid.UUID
	ChargeID   string
	MerchantID string
	Stored     string
	Version    int
	Position   int64
	RecordedAt time.Time
	Told       bool
	Reachable  bool
	Message    *int64
	Status     *inbox.Status
}

// refusal is why the webhook is not sent again. One whose message an operator
// ended undone was never sent, and whoever wants it now may have it.
func (r outcomeRow) refusal() error {
	switch {
	case !r.Reachable:
		return errGone
	case r.Told:
		return nil
	case r.Message == nil:
		return errUntold
	case *r.Status == inbox.StatusDead:
		return fmt.Errorf("the webhook was never delivered, its message is parked: payonce inbox retry %d", *r.Message)
	case *r.Status == inbox.StatusDone:
		return errUntold
	case *r.Status == inbox.StatusDiscarded:
		return nil
	default:
		return errOnWay
	}
}

func readOutcomes(ctx context.Context, q postgres.Querier, sql string, args ...any) ([]Outcome, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[outcomeRow])
	if err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	outcomes := make([]Outcome, len(found))
	for i, r := range found {
		outcomes[i] = Outcome{
			EventID: r.EventID, ChargeID: r.ChargeID, MerchantID: r.MerchantID, Type: domain.EventTypeNamed(r.Stored).Webhook,
			RecordedAt: r.RecordedAt.UTC(), Refusal: r.refusal(), stored: r.Stored, version: r.Version, position: r.Position, told: r.Told,
		}
	}
	return outcomes, nil
}

const insertResend = `
insert into webhook_resends
       (resend_id, event_id, charge_id, merchant_id, requested_by)
values ($1, $2, $3, $4, $5)`

// Resend queues the wish that an outcome's webhook is delivered once more, under
// the same webhook-id and with the same body, to where the merchant is told now.
// The wish is a row that stays, and a message of its own in the inbox, in one
// commit; id is new for each wish. The message is retried and parked like any
// other. If the merchant has been told, it is ResendReceiver's and holds up no
// news; if not, it is news itself, and waits its turn among those of its charge.
// actor is who wants it.
//
// If we die here: before the commit nobody wanted anything; after it, a worker
// delivers. Who does not know asks again: a webhook that comes once more than it
// was meant to is known to the merchant by its id.
// Test: TestWebhooksResend in cmd/payonce.
func Resend(b *pgx.Batch, o Outcome, id uuid.UUID, actor string) error {
	payload, err := json.Marshal(ledger.Envelope{ID: o.EventID.String(), Type: o.stored, ChargeID: o.ChargeID, Version: o.version})
	if err != nil {
		return fmt.Errorf("seal the wish for %s: %w", o.EventID, err)
	}
	receiver := NotificationReceiver
	if o.told {
		receiver = ResendReceiver
	}
	b.Queue(insertResend, id, o.EventID, o.ChargeID, o.MerchantID, actor)
	return inbox.Accept(b, receiver, inbox.Message{
		ID:          resendPrefix + id.String(),
		Type:        TypeResend,
		OrderingKey: o.ChargeID,
		Partition:   o.MerchantID,
		Payload:     payload,
		Metadata:    map[string]string{MetadataRequestedBy: actor},
	})
}

// The first time counts.
const resendDelivered = `
update webhook_resends
   set delivered_at = clock_timestamp()
 where resend_id = $1
   and delivered_at is null`

// recordResend notes that the merchant has taken a webhook that was wanted once more.
func recordResend(b *pgx.Batch, d inbox.Delivery) {
	if id, err := uuid.Parse(strings.TrimPrefix(d.ID, resendPrefix)); err == nil {
		b.Queue(resendDelivered, id)
	}
}
