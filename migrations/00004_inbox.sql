-- +goose Up
-- Promise: a receiver takes a message once, however often it is delivered; at
-- most one holder at a time may finish it; and messages of one ordering key are
-- never worked on side by side. Columns accept whatever the outbox can hold: a
-- row that could not be inserted here would block its topic for ever.

create table inbox (
  id            bigint      generated always as identity primary key,
  receiver      text        not null,
  message_id    text        not null,
  ordering_key  text        not null,
  type          text        not null,
  payload       bytea       not null,
  metadata      jsonb       not null,
  payload_hash  bytea       not null,
  status        text        not null default 'pending'
                            check (status in ('pending', 'running', 'done', 'dead')),
  due_at        timestamptz not null default clock_timestamp(),
  attempts      int         not null default 0,
  waits         int         not null default 0,
  waiting_since timestamptz,
  fence         bigint      not null default 0,
  done_fence    bigint,
  holder        text,
  duplicates    int         not null default 0,
  last_error    text,
  received_at   timestamptz not null default clock_timestamp(),
  finished_at   timestamptz,
  constraint inbox_message_once   unique (receiver, message_id),
  constraint inbox_done_by_holder check (done_fence = fence),
  constraint inbox_done_has_fence check (status <> 'done' or done_fence is not null)
) with (fillfactor = 80);
comment on column inbox.due_at is 'pending: not before this time; running: the end of the lease. Database time';
comment on column inbox.attempts is 'claims since the last wait that ended in an error, a panic or a crash, and the one under way';
comment on column inbox.waits is 'times that something outside was not available: not attempts';
comment on column inbox.fence is 'grows with every claim; whoever finishes the message must still hold the newest';
comment on column inbox.done_fence is 'the fence of the holder that finished it';
comment on column inbox.duplicates is 'deliveries beyond the first';

create unique index inbox_one_running_per_key
    on inbox (receiver, ordering_key)
 where status = 'running';

create index inbox_due
    on inbox (receiver, due_at)
 where status in ('pending', 'running');

create index inbox_open_by_key
    on inbox (receiver, ordering_key, id)
 where status <> 'done';

create table inbox_quarantine (
  id           bigint      generated always as identity primary key,
  receiver     text        not null,
  message_id   text        not null,
  payload      bytea       not null,
  metadata     jsonb       not null,
  payload_hash bytea       not null,
  received_at  timestamptz not null default clock_timestamp(),
  constraint inbox_quarantine_once unique (receiver, message_id, payload_hash)
);
comment on table inbox_quarantine is 'messages that carry a known id with another payload: kept for a human, never processed, never merged';
