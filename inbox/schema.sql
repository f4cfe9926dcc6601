-- Promise: a receiver handles a message once, however often it is delivered; at
-- most one holder at a time may finish it; and messages of one ordering key never
-- run at the same time.
--
-- The columns accept whatever an outbox can hold: a row that could not be inserted
-- here would block its topic for ever.
--
-- This file needs no other table and can be applied by itself.

-- +goose Up
create table inbox (
  id            bigint      generated always as identity,
  receiver      text        collate "C" not null,
  message_id    text        collate "C" not null,
  ordering_key  text        collate "C" not null,
  partition_key text        collate "C" not null default '',
  type          text        not null,
  payload       bytea       not null,
  metadata      jsonb       not null,
  payload_hash  bytea       not null,
  status        text        collate "C" not null default 'pending',
  due_at        timestamptz default clock_timestamp(),
  attempts      int         not null default 0,
  deaths        int         not null default 0,
  waits         int         not null default 0,
  waiting_since timestamptz,
  fence         bigint      not null default 0,
  done_fence    bigint,
  holder        text,
  claimed_at    timestamptz,
  history       jsonb,
  duplicates    int         not null default 0,
  duplicated_at timestamptz,
  last_error    text,
  decided_by    text        collate "C",
  decided_at    timestamptz,
  received_at   timestamptz not null default clock_timestamp(),
  received_in   xid8        not null default pg_current_xact_id(),
  finished_at   timestamptz,

  -- Each row has its own number.
  constraint inbox_pkey primary key (id),

  -- A message is stored once for each receiver. A second delivery is a duplicate. The
  -- receiver comes last: an index that began with it could be read, whole, for the
  -- messages of a key.
  constraint inbox_message_once unique (message_id, receiver),

  -- pending: waits for due_at. running: claimed until due_at. done: finished. dead:
  -- a dead letter, until an operator decides. discarded: an operator ended it without
  -- handling it.
  constraint inbox_status_check
       check (status in ('pending', 'running', 'done', 'dead', 'discarded')),

  -- Only a message without a holder is held back.
  constraint inbox_held_back_is_pending check (due_at is not null or status = 'pending'),

  -- Only the newest holder finishes a message. A claim raises fence; a holder that
  -- was taken over writes an older done_fence and is refused, with all of its commit.
  constraint inbox_done_by_holder check (done_fence = fence),

  -- A message is not finished without a fence.
  constraint inbox_done_has_fence check (status <> 'done' or done_fence is not null),

  -- An operator's decision has a name and a time.
  constraint inbox_decision_has_actor
       check ((decided_by is null) = (decided_at is null) and decided_by <> ''),

  -- A message is discarded by an operator and never by a program.
  constraint inbox_discarded_has_actor
       check (status <> 'discarded' or decided_by is not null)
) with (fillfactor = 80);
comment on column inbox.partition_key is 'messages of one partition share its slots; empty: of none';
comment on column inbox.due_at is 'pending: not before this time, or null: held back until its partition has a slot; running: the end of the lease. Database time';
comment on column inbox.attempts is 'errors and panics since the last wait, deaths, and the claim in progress';
comment on column inbox.deaths is 'holders in a row that died or went silent with it, since one returned';
comment on column inbox.waits is 'how often an external service was not available; these do not count towards MaxAttempts';
comment on column inbox.fence is 'fencing token: each claim raises it';
comment on column inbox.done_fence is 'the fencing token of the holder that finished it';
comment on column inbox.claimed_at is 'when the newest claim began, in database time; null: on receipt';
comment on column inbox.history is 'claims that ended without finishing it, oldest first: an array of objects with fence, holder, claimed_at, at and error, or with lease_ended_at if another holder took over. Of more than 16 the oldest and the newest stay. null: none';
comment on column inbox.duplicates is 'deliveries after the first';
comment on column inbox.duplicated_at is 'when the newest of them was dropped, in database time';
comment on column inbox.decided_by is 'the operator who last retried or discarded it';
comment on column inbox.decided_at is 'when, in database time';
comment on column inbox.received_in is 'the transaction that received it, later than that of its outbox row. After a restore into another server it is set anew, together with the outbox''s';

-- One running message for each ordering key. A second claim of the key is refused.
create unique index inbox_one_running_per_key
    on inbox (receiver, ordering_key)
 where status = 'running';

-- The messages that a claim reads, in order of time, and of id where it is the same. What is
-- held back is not among them, however much of it there is. Only a statement that states the
-- condition on due_at may use this index: without it the planner also searched here for the
-- oldest message of a key while the table had no statistics.
create index inbox_due
    on inbox (receiver, due_at, id)
 where status in ('pending', 'running')
   and due_at is not null;

-- What is held back, each partition in the order of arrival.
create index inbox_held_back
    on inbox (receiver, partition_key, id)
 where status = 'pending'
   and due_at is null;

-- The oldest open message of a key.
create index inbox_open_by_key
    on inbox (receiver, ordering_key, id)
 where status in ('pending', 'running');

-- The dead letters of a key, which block the messages behind them.
create index inbox_dead_letters_by_key
    on inbox (receiver, ordering_key, id)
 where status = 'dead';

-- Messages whose holders died twice in a row, or more often. When such a lease expires, that is
-- the third death, and the message is a suspected poison message.
create index inbox_suspected_poison
    on inbox (receiver, due_at)
 where status = 'running'
   and deaths >= 2;

-- The dead letters, and those that were discarded, as pages for an operator.
create index inbox_dead_or_discarded
    on inbox (status, id)
 where status in ('dead', 'discarded');

-- The rows that retention may delete, and those that it may not delete yet.
create index inbox_finished
    on inbox (finished_at, received_in)
 where status = 'done';

create table inbox_quarantine (
  id           bigint      generated always as identity,
  receiver     text        collate "C" not null,
  message_id   text        collate "C" not null,
  payload      bytea       not null,
  metadata     jsonb       not null,
  payload_hash bytea       not null,
  received_at  timestamptz not null default clock_timestamp(),

  -- Each row has its own number.
  constraint inbox_quarantine_pkey primary key (id),

  -- The same foreign payload is stored once.
  constraint inbox_quarantine_once unique (receiver, message_id, payload_hash)
);
comment on table inbox_quarantine is 'messages that carry a known id and another payload: kept for an operator, never handled, never merged';

-- The rows that retention deletes.
create index inbox_quarantine_received
    on inbox_quarantine (received_at);

-- What DeleteExpired may delete: no message that was received in the transaction or a later
-- one. An application whose transport can deliver
-- a message again while it says so replaces the view, with the same column.
create view inbox_retention as
select '18446744073709551615'::xid8 as received_before;
comment on view inbox_retention is 'what every deletion from the inbox keeps, whatever retention it is called with';
