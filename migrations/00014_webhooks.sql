-- +goose Up
-- Promise: a merchant that is told has a secret that does not end by itself, and
-- takes the next one without a gap: what a secret replaced signs beside it until
-- its time is over, in database time. A webhook that is wanted once more is
-- wanted by somebody. Secrets are for the worker, who signs, and not for the api.

create table webhook_secrets (
  merchant_id text        not null references merchants,
  generation  int         not null check (generation > 0),
  secret      text,
  secret_hash bytea       not null check (length(secret_hash) = 32),
  created_at  timestamptz not null default clock_timestamp(),
  created_by  text        not null check (created_by <> ''),
  ends_at     timestamptz,
  primary key (merchant_id, generation),
  constraint webhook_secrets_end_before_they_are_forgotten
      check (secret is not null or ends_at is not null)
);
comment on column webhook_secrets.generation is 'counts a merchant''s secrets; two who replace one at the same time want the same number, and one of them is refused';
comment on column webhook_secrets.secret is 'Standard Webhooks secret, whsec_… and base64, in the clear: it signs. null: forgotten after its end';
comment on column webhook_secrets.secret_hash is 'SHA-256 of the whole secret, by whose beginning people name it';
comment on column webhook_secrets.created_by is 'who brought it: registration, or an operator';
comment on column webhook_secrets.ends_at is 'null: the newest. It signs no delivery that begins later';

insert into webhook_secrets
       (merchant_id, generation, secret, secret_hash, created_at, created_by)
select merchant_id, 1, webhook_secret, sha256(convert_to(webhook_secret, 'UTF8')), created_at, 'registration'
  from merchants
 where webhook_secret is not null;

alter table merchants
  add column webhook_generation int;
update merchants
   set webhook_generation = 1
 where webhook_url is not null;
-- With the column goes the check that an endpoint has a secret, which the two
-- constraints say anew.
alter table merchants
  drop column webhook_secret,
  add constraint merchants_webhook_has_a_secret
      check ((webhook_url is null) = (webhook_generation is null)),
  add constraint merchants_webhook_secret_exists
      foreign key (merchant_id, webhook_generation) references webhook_secrets
      deferrable initially deferred;
comment on column merchants.webhook_generation is 'the newest of the merchant''s webhook_secrets';

create index webhook_secrets_to_forget
    on webhook_secrets (ends_at)
 where secret is not null;

create table webhook_resends (
  resend_id    uuid        not null primary key,
  event_id     uuid        not null,
  charge_id    text        not null,
  merchant_id  text        not null,
  requested_by text        not null check (requested_by <> ''),
  requested_at timestamptz not null default clock_timestamp(),
  delivered_at timestamptz
);
comment on table webhook_resends is 'webhooks that an operator wanted delivered once more, each with a message of its own in the inbox';
comment on column webhook_resends.event_id is 'the outcome, and the webhook-id that the merchant knows it by';
comment on column webhook_resends.delivered_at is 'when the merchant had taken it, in the commit that ended the message; null: not yet, or never';

create index webhook_resends_by_charge
    on webhook_resends (charge_id);

-- Registering, replacing and asking again are the operator's, who owns the tables.
grant select (merchant_id, webhook_generation) on merchants to payonce_worker;
-- The worker reads the secrets, and forgets those that are over.
grant select, update (secret) on webhook_secrets to payonce_worker;
grant select, update (delivered_at) on webhook_resends to payonce_worker;

alter table webhook_secrets enable row level security;
alter table webhook_resends enable row level security;

create policy worker on webhook_secrets for select to payonce_worker using (true);
create policy forget on webhook_secrets for update to payonce_worker
 using (ends_at <= clock_timestamp())
  with check (secret is null);
create policy worker on webhook_resends to payonce_worker using (true) with check (true);
