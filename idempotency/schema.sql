-- Promise: a key has one answer, and its use is remembered for ever.
--
-- A committed row is complete: Receive inserts it with its answer; Once inserts it,
-- and adds the answer before COMMIT. So a key is either unused or answered; there is no
-- state between the two and nothing to clean up after a crash. When a key expires, its row
-- loses the answer and the request and stays as a tombstone.
--
-- This file needs no other table and can be applied by itself.

-- +goose Up
create table idempotency_keys (
  scope       text        collate "C" not null,
  operation   text        collate "C" not null,
  key         text        collate "C" not null,
  fingerprint bytea       not null,
  request     bytea,
  status_code smallint    not null,
  headers     jsonb       not null default '{}',
  body        bytea,
  created_at  timestamptz not null default clock_timestamp(),
  expires_at  timestamptz not null,

  -- One answer for each key. A second request with the key is refused here.
  constraint idempotency_keys_once primary key (scope, operation, key),

  -- A server error (5xx) is not an answer: the client may retry with the same key.
  constraint idempotency_keys_status_code_check check (status_code between 200 and 499)
);
comment on column idempotency_keys.scope is 'whose key it is: the same key of another scope is another key';
comment on column idempotency_keys.operation is 'what the key is for: the same key of another operation is another key';
comment on column idempotency_keys.fingerprint is 'equal for equal requests; empty: the answer is to any request';
comment on column idempotency_keys.request is 'the request as canonical JSON, which shows where another request differs; null if none was stored';
comment on column idempotency_keys.headers is 'of the answer, an object of arrays; in a tombstone Location alone';
comment on column idempotency_keys.body is 'the answer, byte for byte; null in a tombstone';
comment on column idempotency_keys.expires_at is 'database time; the key has expired from then on, whether or not its answer is deleted';

-- The rows whose answer can be deleted, in order of expiry. Tombstones are not in
-- it, so it grows with the keys that are kept and not with the history. Keys expire
-- in about the order in which they arrive, at whole seconds, so an insert appends to
-- its right end and neighbours share an entry (9 bytes a key).
create index idempotency_keys_kept
    on idempotency_keys (expires_at)
 where body is not null;
