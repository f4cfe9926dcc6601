package audit

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Books are the records of the provider and of the shop: the GET /books of the sandbox.
type Books struct {
	Captures      []BookedMoney        `json:"captures,omitempty"`
	Refunds       []BookedMoney        `json:"refunds,omitempty"`
	Notifications []BookedNotification `json:"notifications,omitempty"`
}

// BookedMoney is a capture or a refund at the provider.
type BookedMoney struct {
	Reference string `json:"reference"` // our charge or refund
	Amount    int64  `json:"amount"`    // the provider's minor units
	Currency  string `json:"currency"`  // empty for a refund
}

// BookedNotification is one webhook as the merchant received it.
type BookedNotification struct {
	WebhookID  string `json:"webhook_id"`
	Reference  string `json:"reference"` // our charge or refund
	Type       string `json:"type"`
	Deliveries int64  `json:"deliveries"`
	Effects    int64  `json:"effects"`
}

// CompareBooks checks the provider's records against the ledger's outcomes. The ledger
// must be at rest, and each of its outcomes must be in the records: an outcome that was
// delivered to no merchant, or to another one, is a violation.
func CompareBooks(ctx context.Context, db *pgxpool.Pool, b Books) ([]Check, error) {
	return check(ctx, pool{db}, facts+bookFacts, bookPromises, b)
}

type pool struct{ *pgxpool.Pool }

func (p pool) Snapshot(ctx context.Context) (pgx.Tx, error) {
	return p.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
}

// The provider's minor units are computed without the provider's client, so that a mistake
// there is found here. Source: https://docs.stripe.com/currencies, "Special cases".
const bookFacts = `, captures as (
  select *
    from jsonb_to_recordset($2::jsonb -> 'captures') c (reference text, amount bigint, currency text)
), returns as (
  select *
    from jsonb_to_recordset($2::jsonb -> 'refunds') r (reference text, amount bigint)
), webhooks as (
  select *
    from jsonb_to_recordset($2::jsonb -> 'notifications')
         n (webhook_id text, reference text, type text, deliveries bigint, effects bigint)
), ended as ( -- the last outcome of each charge and refund: a refund that was reversed failed
  select distinct on (o.id)
         o.id,
         o.webhook,
         o.webhook like '%.succeeded' as succeeded,
         c.data ->> 'currency'        as currency,
         case
           when c.data ->> 'currency' in ('ISK', 'UGX') then o.amount * 100 -- none in ISO 4217, two at Stripe
           when c.data ->> 'currency' = 'MGA'           then o.amount / 100 -- two in ISO 4217, none at Stripe
           else o.amount
         end                          as amount
    from outcomes o
    join ledger_events c
      on c.stream_id = o.stream_id
     and c.type like 'charge.requested.v%'
   order by o.id, o.version desc
)`

var bookPromises = []promise{
	{"records: a succeeded charge was captured once, in full, and a failed one never", `
       ended o
  left join (
       select reference, count(*) as times, min(amount) as amount, min(currency) as currency
         from captures
        group by reference) b
    on b.reference = o.id
 where o.webhook like 'charge.%'`, `
when not succeeded and times > 0
then format('%s: %s, and captured %s times', id, webhook, times)
when succeeded and coalesce(times, 0) <> 1
then format('%s: captured %s times', id, coalesce(times, 0))
when succeeded and (b.amount, upper(b.currency)) <> (o.amount, o.currency)
then format('%s: captured %s %s, not %s %s', id, b.amount, b.currency, o.amount, o.currency)`},
	{"records: every capture is of a finished charge", `captures b left join ended o on o.id = b.reference`, `
when id is null
then format('%s %s captured for "%s"', b.amount, b.currency, reference)`},
	{"records: a succeeded refund was returned once, in full, and a failed one never", `
       ended o
  left join (
       select reference, count(*) as times, min(amount) as amount
         from returns
        group by reference) b
    on b.reference = o.id
 where o.webhook like 'refund.%'`, `
when not succeeded and times > 0
then format('%s: %s, and returned %s times', id, webhook, times)
when succeeded and coalesce(times, 0) <> 1
then format('%s: returned %s times', id, coalesce(times, 0))
when succeeded and b.amount <> o.amount
then format('%s: returned %s, not %s %s', id, b.amount, o.amount, o.currency)`},
	{"records: every refund is a finished refund of the ledger", `returns b left join ended o on o.id = b.reference`, `
when id is null
then format('%s returned for "%s"', b.amount, reference)`},
	{"records: every outcome reached the merchant, and took effect there once", `
       outcomes o
  left join (
       select webhook_id, count(*) as times, min(reference) as reference, min(type) as type,
              min(deliveries) as deliveries, min(effects) as effects
         from webhooks
        group by webhook_id) w
    on w.webhook_id = o.event_id
 where o.notify`, `
when coalesce(times, 0) <> 1
then format('%s: %s was delivered %s times', id, webhook, coalesce(times, 0))
when w.type <> webhook or w.reference <> id
then format('%s: %s was delivered as %s of %s', id, webhook, w.type, w.reference)
when w.effects <> 1 or w.deliveries < 1
then format('%s: %s took effect %s times in %s deliveries', id, webhook, w.effects, w.deliveries)`},
	{"records: the merchant was notified of outcomes only", `webhooks w left join outcomes o on o.event_id = w.webhook_id`, `
when o.event_id is null
then format('%s: notified of %s by %s, which is no outcome', w.reference, w.type, w.webhook_id)`},
}
