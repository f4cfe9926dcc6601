-- Promise: a receiver stores a message once, however often it is delivered, and it ends once; of
-- one ordering key, one message at a time has a claim; and only the newest claim can end it.

-- +goose Up

-- An end of a claim casts false to this type if the message is another holder's, has ended or is gone: the error undoes
-- the whole transaction. A check below has the same name.
create domain inbox_ended as boolean constraint inbox_done_by_holder check (value);

create table inbox (
  id            bigint      generated always as identity primary key,
  receiver      text        collate "C" not null,
  message_id    text        collate "C" not null,
  ordering_key  text        collate "C" not null,
  partition_key text        collate "C" not null default '',
  type          text        not null,
  payload       bytea       not null,
  metadata      jsonb       not null,
  payload_hash  bytea       not null,
  received_at   timestamptz not null default clock_timestamp(),
  duplicates    int         not null default 0,
  duplicated_at timestamptz,
  decided_by    text        collate "C",
  decided_at    timestamptz,
  due_at        timestamptz not null default now(), -- the transaction's begin, so the transaction that stores it can claim it
  deaths        int         not null default 0,
  waits         int         not null default 0,
  waiting_since timestamptz,
  history       jsonb,

  -- A claim changes holder to status, and an end first to last_error: neighbours make short WAL records.
  holder        text        collate "C",
  claimed_at    timestamptz,
  fence         bigint      not null default 0,
  attempts      int         not null default 0,
  nudged        boolean     not null default false,
  first         boolean     not null default false,
  status        text        collate "C" not null default 'pending',
  done_fence    bigint,
  finished_at   timestamptz,
  last_error    text,

  -- A message is stored once for each receiver. A second delivery is a duplicate.
  constraint inbox_message_once unique (message_id, receiver),

  -- running: claimed by its holder. dead: until an operator decides. discarded: ended by an operator, unhandled.
  constraint inbox_status_check
       check (status in ('pending', 'running', 'done', 'dead', 'discarded')),

  -- Only the message that is first of its key runs.
  constraint inbox_running_is_first check (status <> 'running' or first),

  -- A message that has ended is not first.
  constraint inbox_first_is_open check (not first or status in ('pending', 'running', 'dead')),

  -- Only the newest holder finishes a message: a claim raises fence, and an end under an older one is refused.
  constraint inbox_done_by_holder check (done_fence = fence),

  -- A message is not finished without a fence.
  constraint inbox_done_has_fence check (status <> 'done' or done_fence is not null),

  -- An operator's decision has a name and a time.
  constraint inbox_decision_has_actor
       check ((decided_by is null) = (decided_at is null) and decided_by <> ''),

  -- A message is discarded by an operator and never by a program.
  constraint inbox_discarded_has_actor
       check (status <> 'discarded' or decided_by is not null)
) with (fillfactor = 60);
comment on column inbox.partition_key is 'messages of one partition share its slots; empty: of none';
comment on column inbox.first is 'it is the next of its ordering key: only it can be claimed. A dead letter that blocks its key keeps it';
comment on column inbox.nudged is 'a message of its key, or it again, came since its claim: if that ends with a wait, it is due at once';
comment on column inbox.due_at is 'not before this time, in database time';
comment on column inbox.attempts is 'errors and panics since the last wait, deaths, and the claim in progress';
comment on column inbox.deaths is 'holders in a row that died or went silent with it, since one returned';
comment on column inbox.waits is 'claims that ended with a wait; these do not count towards MaxAttempts';
comment on column inbox.fence is 'fencing token: each claim raises it';
comment on column inbox.done_fence is 'the fencing token of the holder that finished it';
comment on column inbox.history is 'claims that ended without finishing it, oldest first; of more than 16 the oldest and the newest stay. null: none';
comment on column inbox.duplicates is 'deliveries after the first';

-- One message of each ordering key is first, so one at a time runs: store, promote, ends, takeOver, repairs and operators
-- decide.
create unique index inbox_one_first_per_key on inbox (receiver, ordering_key) where first;

-- The messages that a claim reads. None of them waits for another one. waits is what correctDueTimes asks for.
create index inbox_due on inbox (receiver, due_at, id, waits) where status = 'pending' and first;

-- Those behind another one of their key.
create index inbox_behind on inbox (receiver, ordering_key, id) where status = 'pending' and not first;

-- Those that a holder has.
create index inbox_running on inbox (receiver, holder) where status = 'running';

-- The dead letters, and those that were discarded, as pages for an operator.
create index inbox_dead_or_discarded on inbox (status, id) where status in ('dead', 'discarded');

-- The rows that retention deletes.
create index inbox_finished on inbox (finished_at) where status = 'done';

-- The processors that hold messages. A message of a holder that is not here is taken over.
create table inbox_holders (
  receiver    text        collate "C" not null,
  holder      text        collate "C" not null,
  alive_until timestamptz not null, -- database time

  -- A processor is registered once.
  constraint inbox_holders_pkey primary key (receiver, holder)
);
