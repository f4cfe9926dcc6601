-- +goose Up
-- Promise: an API key belongs to one merchant, and the key itself is nowhere.
-- Only its SHA-256 is kept, so that a dump of this table opens no door.

create table merchants (
  merchant_id      text        not null primary key
                               check (merchant_id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
  fee_basis_points int         not null default 300 check (fee_basis_points between 0 and 10000),
  fee_fixed        jsonb       not null default '{}' check (jsonb_typeof(fee_fixed) = 'object'),
  webhook_url      text,
  webhook_secret   text,
  created_at       timestamptz not null default clock_timestamp(),
  check ((webhook_url is null) = (webhook_secret is null))
);
comment on column merchants.fee_basis_points is 'hundredths of a percent of the amount, rounded half up in minor units';
comment on column merchants.fee_fixed is 'currency → minor units, added to the percentage';
comment on column merchants.webhook_secret is 'Standard Webhooks secret, whsec_…';

create table api_keys (
  key_hash    bytea       not null primary key check (length(key_hash) = 32),
  prefix      text        not null,
  merchant_id text        not null references merchants,
  created_at  timestamptz not null default clock_timestamp()
);
comment on column api_keys.key_hash is 'SHA-256 of the whole key';
comment on column api_keys.prefix is 'the first characters of the key, by which people name it';
