-- Promise: an API key belongs to one merchant, and only its SHA-256 is stored, so a
-- dump of the table contains no key. A key does what its scopes say until it expires
-- or is revoked, in database time. A merchant with a webhook has one secret without
-- an end; a replaced secret signs beside its successor until its end.

create table merchants (
  merchant_id          text        collate "C" not null,
  fee_basis_points     int         not null default 300,
  fee_fixed            jsonb       not null default '{}',
  one_charge_per_order boolean     not null default false,
  webhook_url          text        collate "C",
  first_secret         int         generated always as (case when webhook_url is not null then 1 end) stored,
  created_at           timestamptz not null default clock_timestamp(),

  -- A merchant registers once.
  constraint merchants_pkey primary key (merchant_id),

  -- An id that is safe in a URL and in a log line.
  constraint merchants_merchant_id_check check (merchant_id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),

  -- A fee is a part of the amount.
  constraint merchants_fee_basis_points_check check (fee_basis_points between 0 and 10000),

  -- Fixed fees are named by currency.
  constraint merchants_fee_fixed_check check (jsonb_typeof(fee_fixed) = 'object')
);
comment on column merchants.fee_basis_points is 'hundredths of a percent of the amount, rounded half up in minor units';
comment on column merchants.fee_fixed is 'currency → minor units, added to the percentage';
comment on column merchants.one_charge_per_order is 'an order has at most one charge that is pending or has succeeded, of those accepted since';
comment on column merchants.first_secret is 'generation of a secret that a merchant with a webhook has';

create table api_keys (
  key_hash     bytea       not null,
  prefix       text        collate "C" not null,
  merchant_id  text        collate "C" not null,
  scopes       text[]      collate "C" not null,
  created_at   timestamptz not null default clock_timestamp(),
  expires_at   timestamptz,
  revoked_at   timestamptz,

  -- A key belongs to one merchant.
  constraint api_keys_pkey primary key (key_hash),

  -- A SHA-256, never the key itself.
  constraint api_keys_key_hash_check check (length(key_hash) = 32),

  -- The merchant exists.
  constraint api_keys_merchant_id_fkey foreign key (merchant_id) references merchants,

  -- A key has at least one scope, and only known ones.
  constraint api_keys_known_scopes
       check (cardinality(scopes) > 0
              and scopes <@ '{charges:write,charges:read,refunds:write}'),

  -- A key is not expired when it is created.
  constraint api_keys_expire_after_their_birth check (expires_at > created_at)
);
comment on column api_keys.key_hash is 'SHA-256 of the whole key';
comment on column api_keys.prefix is 'the beginning of the key, by which operators name it; not secret, and not unique';
comment on column api_keys.scopes is 'what the key may be used for; no scope includes another';
comment on column api_keys.expires_at is 'null: never';
comment on column api_keys.revoked_at is 'null: not revoked; the first revocation counts';

create table webhook_secrets (
  merchant_id text        collate "C" not null,
  generation  int         not null,
  secret      text        collate "C",
  secret_hash bytea       not null,
  created_at  timestamptz not null default clock_timestamp(),
  created_by  text        collate "C" not null,
  ends_at     timestamptz,

  -- Of two operators who replace a secret at the same time one is refused.
  constraint webhook_secrets_pkey primary key (merchant_id, generation),

  -- The merchant exists.
  constraint webhook_secrets_merchant_id_fkey foreign key (merchant_id) references merchants,

  -- Secrets of a merchant count from one.
  constraint webhook_secrets_generation_check check (generation > 0),

  -- A SHA-256, never the secret itself.
  constraint webhook_secrets_secret_hash_check check (length(secret_hash) = 32),

  -- Registration or an operator created it.
  constraint webhook_secrets_created_by_check check (created_by <> ''),

  -- A secret that still signs is not deleted.
  constraint webhook_secrets_end_before_they_are_forgotten
       check (secret is not null or ends_at is not null)
);
comment on column webhook_secrets.generation is 'counts a merchant''s secrets';
comment on column webhook_secrets.secret is 'Standard Webhooks secret, whsec_… and base64, in the clear, because it signs; null: deleted by a rotation after its end';
comment on column webhook_secrets.secret_hash is 'SHA-256 of the whole secret, by whose beginning operators name it';
comment on column webhook_secrets.created_by is 'registration, or the operator';
comment on column webhook_secrets.ends_at is 'null: the newest. It signs no delivery that begins later';

-- A merchant with a webhook has a secret of its own. Deferred, because merchant and secret refer to each other.
alter table merchants
  add constraint merchants_webhook_secret_exists
      foreign key (merchant_id, first_secret) references webhook_secrets
      deferrable initially deferred;

-- Authentication asks before the merchant is known, so this function sees all rows. The
-- offsets keep the plan at two index probes: without them the planner may join all keys with
-- all merchants.
create function api_keys_by_hash(hashes bytea[])
returns table (
  place                bigint,
  scopes               text[],
  merchant_id          text,
  fee_basis_points     int,
  fee_fixed            jsonb,
  one_charge_per_order boolean,
  has_webhook          boolean
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select asked.place,
         k.scopes,
         m.merchant_id,
         m.fee_basis_points,
         m.fee_fixed,
         m.one_charge_per_order,
         m.has_webhook
    from unnest(hashes) with ordinality as asked (key_hash, place)
   cross join lateral (
         select scopes,
                merchant_id
           from public.api_keys
          where key_hash = asked.key_hash
            and revoked_at is null
            and (expires_at is null or expires_at > clock_timestamp())
         offset 0) k
   cross join lateral (
         select merchant_id,
                fee_basis_points,
                fee_fixed,
                one_charge_per_order,
                webhook_url is not null as has_webhook
           from public.merchants
          where merchant_id = k.merchant_id
         offset 0) m;
end
$$;
comment on function api_keys_by_hash is 'what authenticates a request: keys that are in force, by their hashes, with the place of each among these';
revoke execute on function api_keys_by_hash from public;
