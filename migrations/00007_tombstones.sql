-- +goose Up
-- Promise: what a key said is kept as long as it was promised, that it was used
-- for ever. An expired row loses its answer and its request, and stays as a
-- tombstone: scope, operation, key, fingerprint, status, Location and times.

alter table idempotency_keys
  add column request bytea,
  alter column content_type drop not null,
  alter column body drop not null,
  add constraint idempotency_keys_kept_or_swept
      check (body is not null and content_type is not null
             or body is null and content_type is null and request is null);
comment on column idempotency_keys.request is 'canonical JSON of the typed request, to say where another one differs; null where none was kept';
comment on column idempotency_keys.body is 'the answer, byte for byte; null once swept';
comment on column idempotency_keys.content_type is 'null once swept';
comment on column idempotency_keys.expires_at is 'database time; decides alone whether the key has expired, swept or not';

-- The sweep's way to the rows it has to do. It holds no tombstones, so it is as
-- long as the keys that are kept, not as the history. An accept appends to its
-- right end: keys expire in about the order in which they come, at whole seconds,
-- so that neighbours share one entry (9 bytes a key, and 67 of 857 bytes of WAL).
create index idempotency_keys_kept
    on idempotency_keys (expires_at)
 where body is not null;
