-- The promise of these tables: they show what happened, not what should have.
-- A capture, a refund and a handled notification is one row each, written by
-- the transaction that also saved the answer, so that the number of rows is
-- the number of effects.

create table requests (
  position bigint generated always as identity primary key,
  id text not null unique,
  method text not null,
  path text not null,
  idempotency_key text,
  replay_of text,
  arrived_at timestamptz not null default clock_timestamp()
);
comment on table requests is 'every request to /v1, whatever became of it';
comment on column requests.replay_of is 'the request whose saved answer was served; null when this one was not a replay';

create table idempotency_keys (
  key text primary key,
  fingerprint bytea not null,
  request_id text not null,
  status int not null,
  body bytea not null,
  created_at timestamptz not null default clock_timestamp()
);
comment on column idempotency_keys.fingerprint is 'SHA-256 over method, path and parameters';
comment on column idempotency_keys.request_id is 'the request that made the saved answer';

create table payment_intents (
  position bigint generated always as identity unique,
  id text primary key,
  amount bigint not null check (amount > 0),
  amount_refunded bigint not null default 0 check (amount_refunded between 0 and amount),
  currency text not null check (currency ~ '^[a-z]{3}$'),
  status text not null check (status in (
    'requires_payment_method', 'requires_confirmation', 'requires_action',
    'processing', 'succeeded', 'canceled')),
  payment_method text,
  description text,
  metadata jsonb not null,
  latest_charge text,
  last_payment_error jsonb,
  next_action jsonb,
  cancellation_reason text,
  canceled_at timestamptz,
  settle_at timestamptz,
  created_at timestamptz not null,
  charge_id text not null,
  check ((status = 'processing') = (settle_at is not null)),
  check ((status = 'requires_action') = (next_action is not null)),
  check ((status = 'canceled') = (canceled_at is not null)),
  check (amount_refunded = 0 or status = 'succeeded')
);
comment on column payment_intents.position is 'order of lists';
comment on column payment_intents.charge_id is 'of payonce''s charge, for the records alone; empty if the request did not name it';
comment on column payment_intents.latest_charge is 'null until a confirmation was attempted';
comment on column payment_intents.settle_at is 'when a processing intent succeeds';
create index payment_intents_settle on payment_intents (settle_at)
  where settle_at is not null;

create table captures (
  id text primary key,
  payment_intent text not null references payment_intents (id),
  amount bigint not null check (amount > 0),
  currency text not null,
  captured_at timestamptz not null default clock_timestamp()
);
comment on table captures is
  'one row per successful confirmation; not unique per intent on purpose: a provider that captured twice must show two';
create index captures_payment_intent on captures (payment_intent);

create table refunds (
  position bigint generated always as identity unique,
  id text primary key,
  payment_intent text not null references payment_intents (id),
  charge text not null references captures (id),
  amount bigint not null check (amount > 0),
  currency text not null,
  status text not null check (status in ('succeeded', 'failed')),
  failure_reason text,
  reason text,
  metadata jsonb not null,
  created_at timestamptz not null,
  check ((status = 'failed') = (failure_reason is not null))
);
create index refunds_payment_intent on refunds (payment_intent);

create table disputes (
  position bigint generated always as identity unique,
  id text primary key,
  payment_intent text not null unique references payment_intents (id),
  charge text not null references captures (id),
  amount bigint not null check (amount > 0),
  fee bigint not null,
  currency text not null,
  status text not null check (status in ('needs_response', 'won', 'lost')),
  movements int not null check (movements > 0),
  created_at timestamptz not null
);
comment on column disputes.fee is 'taken with the amount when the dispute is opened, and given back with it when it is won';
comment on column disputes.movements is 'how often amount and fee moved: taken by the first, given back by the second, and so on';

create table events (
  position bigint generated always as identity primary key,
  id text not null unique,
  type text not null,
  body text not null
);
comment on column events.body is 'the bytes that are signed, at every delivery the same';

create table event_deliveries (
  position bigint generated always as identity primary key,
  event_id text not null references events (id),
  attempts int not null default 0,
  due_at timestamptz default clock_timestamp(),
  outcome text,
  delivered_at timestamptz
);
comment on column event_deliveries.due_at is 'null once delivered or given up';
comment on column event_deliveries.outcome is 'what the last attempt came to; null before the first has ended';
create index event_deliveries_due on event_deliveries (due_at)
  where due_at is not null;

create table shop_deliveries (
  position bigint generated always as identity primary key,
  webhook_id text not null,
  received_at timestamptz not null default clock_timestamp()
);
comment on table shop_deliveries is 'one row per arrival whose signature was right';
create index shop_deliveries_webhook_id on shop_deliveries (webhook_id);

create table shop_effects (
  position bigint generated always as identity unique,
  webhook_id text primary key,
  reference text not null,
  type text not null,
  handled_at timestamptz not null default clock_timestamp()
);
comment on table shop_effects is 'what the merchant did; its key makes the second arrival of one webhook-id do nothing';
