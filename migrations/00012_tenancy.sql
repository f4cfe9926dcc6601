-- +goose Up
-- Promise: a program can do no more than its work, and a request sees no more
-- than its merchant's. The api and the worker run as roles of their own, to which
-- everything that is not granted here is refused (42501); and of every table with
-- a merchant the api sees, and writes, the rows of the merchant that its
-- transaction names in payonce.merchant alone: without a name, none.
--
-- This stands under the checks of the code, for the day on which one of them is
-- forgotten. Who owns the tables, and a superuser, is not held by it: operators
-- look across merchants.

-- Roles belong to the server, and several of its databases may be migrated at
-- once. Whoever may not make them does not have to, if they are there and granted.
-- +goose StatementBegin
do $$
declare
  program text;
  may_set text := case when current_setting('server_version_num')::int >= 160000 then 'SET' else 'MEMBER' end;
begin
  foreach program in array array['payonce_api', 'payonce_worker'] loop
    begin
      if not exists (select from pg_roles where rolname = program) then
        execute format('create role %I nologin', program);
      end if;
    exception
      when duplicate_object or unique_violation then null; -- somebody was faster
      when insufficient_privilege then null;
    end;
    begin
      if not pg_has_role(current_user, program, may_set) then
        execute format('grant %I to current_user', program);
      end if;
    exception
      when unique_violation then null; -- as above
      when insufficient_privilege or undefined_object then
        raise exception 'the role % is missing, or not granted to %: let a superuser run "create role payonce_api; create role payonce_worker; grant payonce_api, payonce_worker to %" as far as it is not done, and migrate again',
              program, current_user, quote_ident(current_user)
              using errcode = 'insufficient_privilege';
    end;
  end loop;
end
$$;
-- +goose StatementEnd

revoke create on schema public from public;
revoke execute on function refuse_change() from public;
grant usage on schema public to payonce_api, payonce_worker;

-- Both look at the start whether the schema is theirs.
grant select on schema_migrations to payonce_api, payonce_worker;

-- The ledger: read and appended to. Position, transaction and time of an event
-- are the database's own.
grant select,
      insert (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
   on ledger_events to payonce_api, payonce_worker;
grant select, insert on ledger_postings to payonce_api, payonce_worker;

-- A key is claimed by the api and swept by the worker.
grant select,
      insert (scope, operation, key, fingerprint, request, status_code, content_type, location, body, expires_at)
   on idempotency_keys to payonce_api;
grant select,
      update (body, content_type, request)
   on idempotency_keys to payonce_worker;

-- Messages: both send, the worker receives and carries, the api takes the
-- provider's news in and lets an operator decide about what is parked. The api
-- reads the rest for the audit.
grant select, insert (topic, message_id, payload, metadata) on outbox to payonce_api, payonce_worker;
grant delete on outbox to payonce_worker;
grant select on outbox_offsets to payonce_api;
grant select, insert, update (transaction_id, "offset") on outbox_offsets to payonce_worker;
grant select,
      insert (receiver, message_id, ordering_key, type, payload, metadata, payload_hash),
      update (status, due_at, attempts, deaths, waits, waiting_since, fence, duplicates, finished_at, decided_by, decided_at)
   on inbox to payonce_api;
grant select,
      insert (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, fence, done_fence),
      update (status, due_at, attempts, deaths, waits, waiting_since, fence, done_fence, holder, duplicates, last_error, finished_at),
      delete
   on inbox to payonce_worker;
grant select, insert (receiver, message_id, payload, metadata, payload_hash)
   on inbox_quarantine to payonce_api, payonce_worker;

-- Stock is moved by the worker; the api reads it for the audit.
grant select on stock, reservations to payonce_api, payonce_worker;
grant update (available, reserved, sold) on stock to payonce_worker;
grant insert, update (status) on reservations to payonce_worker;

-- Where a merchant wants to be told is the worker's, the seal of the cache the
-- api's, and the keys are nobody's: see api_keys_by_prefix.
grant select (merchant_id, webhook_url, webhook_secret) on merchants to payonce_worker;
grant select (secret) on cache_secret to payonce_api;

alter table ledger_events    enable row level security;
alter table ledger_postings  enable row level security;
alter table idempotency_keys enable row level security;
alter table outbox           enable row level security;
alter table inbox            enable row level security;
alter table inbox_quarantine enable row level security;
alter table stock            enable row level security;
alter table reservations     enable row level security;
alter table merchants        enable row level security;
alter table api_keys         enable row level security;

create policy worker on ledger_events    to payonce_worker using (true) with check (true);
create policy worker on ledger_postings  to payonce_worker using (true) with check (true);
create policy worker on idempotency_keys to payonce_worker using (true) with check (true);
create policy worker on outbox           to payonce_worker using (true) with check (true);
create policy worker on inbox            to payonce_worker using (true) with check (true);
create policy worker on inbox_quarantine to payonce_worker using (true) with check (true);
create policy worker on stock            to payonce_worker using (true) with check (true);
create policy worker on reservations     to payonce_worker using (true) with check (true);
create policy worker on merchants        to payonce_worker using (true) with check (true);

-- A policy holds for what is read and, where nothing else is said, for what is
-- written. The setting is '' once it was set in a session: no merchant's name.
create policy tenant on ledger_events to payonce_api
 using (merchant_id = current_setting('payonce.merchant', true));
create policy tenant on ledger_postings to payonce_api
 using (merchant_id = current_setting('payonce.merchant', true));
create policy tenant on idempotency_keys to payonce_api
 using (scope = current_setting('payonce.merchant', true));
create policy tenant on stock to payonce_api
 using (merchant_id = current_setting('payonce.merchant', true));
create policy tenant on reservations to payonce_api
 using (merchant_id = current_setting('payonce.merchant', true));

-- A message is the merchant's whose charge it is about. The reading of
-- ledger_events is held by its own policy, and is one probe per message.
create policy tenant on inbox to payonce_api
 using ((select merchant_id
           from ledger_events
          where stream_id = inbox.ordering_key
            and version = 1) = current_setting('payonce.merchant', true));
create policy tenant on inbox_quarantine to payonce_api
 using ((select receiver
           from inbox
          where inbox.receiver = inbox_quarantine.receiver
            and inbox.message_id = inbox_quarantine.message_id) is not null);
create policy tenant on outbox for select to payonce_api
 using ((select merchant_id
           from ledger_events
          where stream_id = outbox.metadata ->> 'ordering_key'
            and version = 1) = current_setting('payonce.merchant', true));
create policy append on outbox for insert to payonce_api
  with check (true);

-- What is asked before the merchant is known is asked of these functions, which
-- see all rows and say no more than their names.

-- +goose StatementBegin
create function api_keys_by_prefix(prefixes text[])
returns table (
  key_hash         bytea,
  scopes           text[],
  merchant_id      text,
  fee_basis_points int,
  fee_fixed        jsonb,
  has_webhook      boolean
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select k.key_hash,
         k.scopes,
         m.merchant_id,
         m.fee_basis_points,
         m.fee_fixed,
         m.webhook_url is not null
    from public.api_keys k
    join public.merchants m
      on m.merchant_id = k.merchant_id
   where k.prefix = any(prefixes)
     and k.revoked_at is null
     and (k.expires_at is null or k.expires_at > clock_timestamp());
end
$$;
-- +goose StatementEnd
comment on function api_keys_by_prefix is 'what authenticates a request: keys that are in force, by the part that is no secret';
revoke execute on function api_keys_by_prefix from public;
grant execute on function api_keys_by_prefix to payonce_api;

-- +goose StatementBegin
create function charge_by_id(id text)
returns table (stream_id text, merchant_id text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select e.stream_id,
         e.merchant_id
    from public.ledger_events e
   where e.stream_id = id
     and e.version = 1;
end
$$;
-- +goose StatementEnd
comment on function charge_by_id is 'whose charge the provider''s news is about';
revoke execute on function charge_by_id from public;
grant execute on function charge_by_id to payonce_api;

-- +goose StatementBegin
create function charge_by_payment_intent(provider text, payment_intent text)
returns table (stream_id text, merchant_id text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select e.stream_id,
         e.merchant_id
    from public.ledger_events e
   where e.type like 'payment.captured.v%'
     and e.data ->> 'provider' = provider
     and e.data ->> 'payment_intent' = payment_intent;
end
$$;
-- +goose StatementEnd
comment on function charge_by_payment_intent is 'as charge_by_id, by the payment intent that was captured';
revoke execute on function charge_by_payment_intent from public;
grant execute on function charge_by_payment_intent to payonce_api;

-- Sessions may be ended by those whose they are, and by superusers. This ends
-- those of our programs that stand in the middle of a transaction, as far as
-- the owner of the function may.
create function end_half_sent(program text, patience interval)
returns bigint
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
select count(*) filter (where pg_terminate_backend(a.pid))
  from pg_stat_activity a
  join pg_roles r
    on r.oid = a.usesysid
 where a.datname = current_database()
   and a.application_name like program || '%'
   and (pg_has_role(r.oid, 'payonce_api', 'member') or pg_has_role(r.oid, 'payonce_worker', 'member'))
   and (pg_has_role(current_user, r.oid, 'usage')
        or pg_has_role(current_user, 'pg_signal_backend', 'usage') and not r.rolsuper)
   and a.state = 'active'
   and a.wait_event = 'ClientRead'
   and a.backend_xid is not null
   and a.xact_start < clock_timestamp() - patience
   and a.pid <> pg_backend_pid()
$$;
comment on function end_half_sent is 'ends sessions whose program sent half a batch and stands still, and says how many';
revoke execute on function end_half_sent from public;
grant execute on function end_half_sent to payonce_worker;
