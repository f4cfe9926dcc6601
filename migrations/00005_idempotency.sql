-- +goose Up
-- Promise: a key has one answer. The row is inserted, finished, by the commit
-- that does the work, so a key is either unused or answered; there is no state
-- between the two, and nothing to clean up after a crash.

create table idempotency_keys (
  scope        text        not null,
  operation    text        not null,
  key          text        not null,
  fingerprint  bytea       not null,
  status_code  smallint    not null check (status_code between 200 and 499),
  content_type text        not null,
  location     text        not null default '',
  body         bytea       not null,
  created_at   timestamptz not null default clock_timestamp(),
  expires_at   timestamptz not null,
  constraint idempotency_keys_once primary key (scope, operation, key)
);
comment on column idempotency_keys.scope is 'whose key it is: the merchant';
comment on column idempotency_keys.operation is 'the route pattern';
comment on column idempotency_keys.fingerprint is 'SHA-256 of the typed, validated request';
comment on column idempotency_keys.body is 'the answer, byte for byte';
