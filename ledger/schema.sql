-- Promise: an event happens once, at one version of its stream, directly after the
-- event before it, and is never changed. A stream has no gap and one owner. A
-- decision that was made on another state of the stream is refused by one of these
-- constraints, together with everything else in its commit.
--
-- This file needs no other table and can be applied by itself.

-- The order numbers of events: txid = epoch × 2^48 + transaction number. Another server gives the same numbers
-- to other transactions. So `payonce outbox repair` raises the epoch after a dump was restored: the restored
-- events keep their numbers, which sort before all new ones.
-- It is a function, since replacing that invalidates cached plans.
create function ledger_epoch() returns bigint language sql stable
return 0::bigint;
comment on function ledger_epoch is 'how often these tables came through a dump and were repaired';

create function ledger_order(transaction xid8) returns xid8 language sql stable
return ((ledger_epoch() << 48) + transaction::text::bigint)::text::xid8;
comment on function ledger_order is 'the order number of events of a transaction of this server';
revoke execute on function ledger_epoch, ledger_order from public;

create table ledger_events (
  position         bigint      generated always as identity,
  txid             xid8        not null default ledger_order(pg_current_xact_id()),
  event_id         uuid        not null,
  stream_id        text        collate "C" not null,
  version          int         not null,
  previous_version int         generated always as (nullif(version - 1, 0)) stored,
  type             text        collate "C" not null,
  merchant_id      text        collate "C" not null,
  data             jsonb       not null,
  metadata         jsonb       not null,
  occurred_at      timestamptz not null,
  recorded_at      timestamptz not null default clock_timestamp(),
  webhook          boolean     not null default false,
  order_id         text        collate "C" generated always as (data ->> 'order_id') stored,

  -- Each event has its own place in the order in which followers read. An insert appends to
  -- the right end of the index.
  constraint ledger_events_pkey primary key (txid, position),

  -- A decision that is committed twice has the same event id, and is refused.
  constraint ledger_events_event_once unique (event_id),

  -- Of two decisions on the same state of a stream one is refused. merchant_id is in the
  -- key only because the next constraint refers to it: a stream has one merchant.
  constraint ledger_events_version_once unique (stream_id, version, merchant_id),

  -- An event follows the event before it, of the same merchant. So a stream begins with
  -- version 1, has no gap and has one merchant: a decision on events that a failover has
  -- lost is refused, and so is an event for another merchant's charge.
  constraint ledger_events_previous_exists
       foreign key (stream_id, merchant_id, previous_version)
       references ledger_events (stream_id, merchant_id, version),

  -- A reader can show when an event occurred.
  constraint ledger_events_occurred_at_check
       check (occurred_at between '1970-01-01 00:00+00' and '9999-01-01 00:00+00'),

  -- An event has named fields, and 1 MiB of them at most: programs hold events in memory. The
  -- concatenation decompresses: a value from another table may be compressed, and would measure less.
  constraint ledger_events_data_check
       check (jsonb_typeof(data) = 'object' and pg_column_size(data || '{}') <= 1048576),

  -- So has its cause.
  constraint ledger_events_metadata_check
       check (jsonb_typeof(metadata) = 'object' and pg_column_size(metadata || '{}') <= 1048576)
);
comment on column ledger_events.txid is 'order number: all events are read in the order of txid and position, and only below the oldest transaction in progress';
comment on column ledger_events.event_id is 'UUIDv5 of stream, cause, type and ordinal, as version 8 for a request: the same decision made twice has the same id';
comment on column ledger_events.stream_id is 'the charge';
comment on column ledger_events.previous_version is 'the version that must exist; null for the first event';
comment on column ledger_events.order_id is 'of the first event; behind row-level security no index on an expression is used, so it is a column';
comment on column ledger_events.occurred_at is 'for display; no decision depends on it';
comment on column ledger_events.webhook is 'whether merchants are notified of events of the type: domain.EventType.Webhook';

-- A stream begins once: two merchants cannot both have its version 1. Everything later
-- follows from that first event. This index is a guard alone: no statement reads it.
create unique index ledger_events_one_beginning
    on ledger_events (stream_id)
 where previous_version is null;

-- A charge is captured once.
create unique index ledger_events_one_capture
    on ledger_events (stream_id)
 where type like 'payment.captured.v%';

-- A charge succeeds or fails, once.
create unique index ledger_events_one_outcome
    on ledger_events (stream_id)
 where type like 'charge.succeeded.v%'
    or type like 'charge.failed.v%';

-- A payment at the provider pays for one charge.
create unique index ledger_events_one_capture_per_intent
    on ledger_events ((data ->> 'provider') collate "C", (data ->> 'payment_intent') collate "C")
 where type like 'payment.captured.v%';

-- A refund succeeds or fails, once. That the refunds of a charge do not exceed what
-- was captured is decided at a version of the stream, which is unique itself.
create unique index ledger_events_one_refund_outcome
    on ledger_events (stream_id, (data ->> 'refund_id') collate "C")
 where type like 'refund.succeeded.v%'
    or type like 'refund.failed.v%'
    or type like 'refund.observed.v%';

-- A refund is reversed once.
create unique index ledger_events_one_refund_reversal
    on ledger_events (stream_id, (data ->> 'refund_id') collate "C")
 where type like 'refund.reversed.v%';

-- A refund at the provider is recorded once.
create unique index ledger_events_one_refund_per_provider_refund
    on ledger_events ((data ->> 'provider') collate "C", (data ->> 'provider_refund') collate "C")
 where type like 'refund.succeeded.v%'
    or type like 'refund.observed.v%';

-- A dispute at the provider is opened once, and each movement of its money is recorded once: a
-- balance transaction, by its id. Only an opening has no transaction.
create unique index ledger_events_one_dispute
    on ledger_events (coalesce(data ->> 'transaction', data ->> 'dispute_id') collate "C")
 where type like 'charge.dispute\_opened.v%'
    or type like 'charge.dispute\_withdrawn.v%'
    or type like 'charge.dispute\_reinstated.v%';

-- A payment intent is one charge's. The provider's events name it, and may arrive before its
-- capture is recorded.
create unique index ledger_events_by_payment_intent
    on ledger_events ((data ->> 'payment_intent') collate "C")
 where type like 'payment.started.v%';

-- The feed of a merchant: GET /v1/events. Few events have these types.
create index ledger_events_feed
    on ledger_events (merchant_id, txid, position)
 where webhook;

-- The pages of GET /v1/charges, newest first: the id of a charge begins with the time of its
-- request.
create index ledger_events_listed
    on ledger_events (merchant_id, stream_id)
 where previous_version is null;

-- The same with order_id.
create index ledger_events_listed_by_order
    on ledger_events (merchant_id, order_id, stream_id)
 where previous_version is null;

-- The same with a status that few charges have: each such charge has one of these events.
create index ledger_events_marking_a_status
    on ledger_events (merchant_id, stream_id)
 where type in ('charge.failed.v1', 'payment.action_required.v1', 'refund.succeeded.v1', 'refund.observed.v1');

create table ledger_postings (
  stream_id   text     collate "C" not null,
  version     int      not null,
  leg         smallint not null,
  merchant_id text     collate "C" not null,
  debit       text     collate "C" not null,
  credit      text     collate "C" not null,
  amount      bigint   not null,
  currency    char(3)  collate "C" not null,

  -- A leg of an event is posted once.
  constraint ledger_postings_leg_once primary key (stream_id, version, leg),

  -- Legs count from one.
  constraint ledger_postings_leg_check check (leg > 0),

  -- An amount moves, and in one direction.
  constraint ledger_postings_amount_check check (amount > 0),

  -- An account does not give to itself.
  constraint ledger_postings_two_accounts check (debit <> credit),

  -- Both accounts are in the currency of the posting.
  constraint ledger_postings_one_currency
       check (right(debit, 3) = currency and right(credit, 3) = currency)
);
comment on table ledger_postings is 'double entry: each row moves an amount from one account to another, so the sum of all accounts is zero';
comment on column ledger_postings.amount is 'minor units';
comment on column ledger_postings.debit is 'kind:owner:currency';

-- The order of a charge that wants to be the only one: held from the commit that accepts the
-- charge to the commit that fails it, and for ever if the charge succeeds.
create table held_orders (
  merchant_id text collate "C" not null,
  order_id    text collate "C" not null,
  stream_id   text collate "C" not null,

  -- Of two charges for an order one is refused.
  constraint held_orders_one_charge primary key (merchant_id, order_id)
);
comment on table held_orders is 'the orders of charges with one_charge_per_order that are pending or have succeeded';
comment on column held_orders.stream_id is 'the charge';

create function refuse_change() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only: % refused', tg_table_name, tg_op
    using errcode = 'restrict_violation';
end
$$;
comment on function refuse_change is 'the trigger of append-only tables';
revoke execute on function refuse_change from public;

-- Events are appended and never changed.
create trigger ledger_events_append_only
before update or delete or truncate on ledger_events
   for each statement execute function refuse_change();

-- Postings are appended and never changed.
create trigger ledger_postings_append_only
before update or delete or truncate on ledger_postings
   for each statement execute function refuse_change();

-- The function finds a charge before its merchant is known. It sees the charges of all merchants
-- and returns no more than the owner.
create function charge_by_payment_intent(provider text, payment_intent text)
returns table (stream_id text, merchant_id text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select e.stream_id,
         e.merchant_id
    from public.ledger_events e
   where e.type like 'payment.started.v%'
     and e.data ->> 'provider' = provider
     and (e.data ->> 'payment_intent') collate "C" = payment_intent;
end
$$;
comment on function charge_by_payment_intent is 'the owner of the charge of a payment intent';
revoke execute on function charge_by_payment_intent from public;
