-- +goose Up
-- Promise: a message waits in the commit that caused it. It is there exactly if
-- that commit is, and every consumer group reads all of them in commit order.

create table outbox (
  topic          text        not null,
  transaction_id xid8        not null default pg_current_xact_id(),
  "offset"       bigint      generated always as identity,
  message_id     text        not null check (length(message_id) between 1 and 36),
  payload        bytea       not null,
  metadata       jsonb       not null check (jsonb_typeof(metadata) = 'object'),
  created_at     timestamptz not null default clock_timestamp(),
  primary key (topic, transaction_id, "offset")
);
comment on column outbox.message_id is 'the Watermill UUID; payonce puts the event id there';
comment on column outbox."offset" is 'order within a transaction; alone it says nothing about the order of commits';

create table outbox_offsets (
  topic          text   not null,
  consumer_group text   not null,
  transaction_id xid8   not null,
  "offset"       bigint not null,
  primary key (topic, consumer_group)
);
comment on table outbox_offsets is 'how far a consumer group has received: everything up to and including this pair';
