-- +goose Up
-- Promise: an event happens once, at one version of its charge, and is never
-- changed afterwards. Whoever decided on an older state loses at the unique
-- constraint, and with it loses everything else that it wrote in that commit.

create table ledger_events (
  position       bigint      generated always as identity primary key,
  txid           xid8        not null default pg_current_xact_id(),
  event_id       uuid        not null,
  stream_id      text        not null,
  version        int         not null check (version > 0),
  type           text        not null,
  schema_version smallint    not null check (schema_version > 0),
  merchant_id    text        not null,
  data           jsonb       not null check (jsonb_typeof(data) = 'object'),
  metadata       jsonb       not null check (jsonb_typeof(metadata) = 'object'),
  occurred_at    timestamptz not null,
  recorded_at    timestamptz not null default clock_timestamp(),
  constraint ledger_events_event_once   unique (event_id),
  constraint ledger_events_version_once unique (stream_id, version)
);
comment on column ledger_events.txid is 'order of commits together with position: readers of the log stay below the oldest transaction under way';
comment on column ledger_events.event_id is 'UUIDv5 of stream, cause, type and ordinal: the same decision made twice has the same id';
comment on column ledger_events.stream_id is 'the charge';
comment on column ledger_events.occurred_at is 'for display; nothing is decided by it';

create unique index ledger_events_one_capture
    on ledger_events (stream_id)
 where type like 'payment.captured.v%';

create unique index ledger_events_one_outcome
    on ledger_events (stream_id)
 where type like 'charge.succeeded.v%'
    or type like 'charge.failed.v%';

create unique index ledger_events_one_capture_per_reference
    on ledger_events ((data ->> 'provider'), (data ->> 'payment_intent'))
 where type like 'payment.captured.v%';

create table ledger_postings (
  stream_id   text     not null,
  version     int      not null,
  leg         smallint not null check (leg > 0),
  merchant_id text     not null,
  debit       text     not null,
  credit      text     not null,
  amount      bigint   not null check (amount > 0),
  currency    char(3)  not null,
  constraint ledger_postings_leg_once primary key (stream_id, version, leg),
  constraint ledger_postings_two_accounts check (debit <> credit),
  constraint ledger_postings_one_currency check (right(debit, 3) = currency and right(credit, 3) = currency)
);
comment on table ledger_postings is 'double entry: each row takes amount from one account and gives it to another, so that books balance by construction';
comment on column ledger_postings.amount is 'minor units';
comment on column ledger_postings.debit is 'kind:owner:currency';

-- +goose StatementBegin
create function refuse_change() returns trigger language plpgsql as $$
begin
  raise exception '% is append-only: % refused', tg_table_name, tg_op
    using errcode = 'restrict_violation';
end
$$;
-- +goose StatementEnd

create trigger ledger_events_append_only
before update or delete or truncate on ledger_events
   for each statement execute function refuse_change();

create trigger ledger_postings_append_only
before update or delete or truncate on ledger_postings
   for each statement execute function refuse_change();
