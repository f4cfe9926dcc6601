-- +goose Up
-- Promise: a key opens what it was made for, until its time is over or it is
-- revoked. Both are judged in database time by the statement that authenticates,
-- so a revoked key is refused from the next request on, by every api.

-- Keys from before could do everything. A new one says what it is for.
alter table api_keys
  add column scopes     text[] not null default '{charges:write,charges:read,refunds:write,admin}',
  add column expires_at timestamptz,
  add column revoked_at timestamptz,
  add constraint api_keys_known_scopes
      check (cardinality(scopes) > 0
         and scopes <@ '{charges:write,charges:read,refunds:write,admin}'),
  add constraint api_keys_expire_after_their_birth
      check (expires_at > created_at);
alter table api_keys
  alter column scopes drop default;
comment on column api_keys.scopes is 'what the key may be used for; none includes another';
comment on column api_keys.expires_at is 'null: never';
comment on column api_keys.revoked_at is 'null: not revoked; the first revocation counts';
comment on column api_keys.prefix is 'the beginning of the key, by which people name it and requests find it; no secret, and not unique';

create index api_keys_by_prefix
    on api_keys (prefix);
