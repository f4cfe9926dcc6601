-- Promise: a program can do no more than its work, and a request sees no more than its
-- merchant's rows. The api, the worker and the console act as roles of their own, and everything
-- that is not granted here is refused to them (42501). Of every table with a merchant
-- the api reads and writes only the rows of the merchant that its transaction names in
-- the setting payonce.merchant; without a name, none.
--
-- This is the second line behind the checks of the code. It does not hold for the owner
-- of the tables and for superusers: operators read across merchants.
--
-- The file also holds what belongs to no single package: foreign keys between packages, and
-- functions that read the server's sessions.

-- Roles belong to the server, and several of its databases may be migrated at the same
-- time. A user that may not create roles needs no such right if they exist and are granted.
do $$
declare
  program text;
  may_set text := case when current_setting('server_version_num')::int >= 160000 then 'SET' else 'MEMBER' end;
begin
  foreach program in array array['payonce_api', 'payonce_worker', 'payonce_console'] loop
    begin
      if not exists (select from pg_roles where rolname = program) then
        execute format('create role %I nologin', program);
      end if;
    exception
      when duplicate_object or unique_violation then null; -- another migration created it
      when insufficient_privilege then null;
    end;
    begin
      if not pg_has_role(current_user, program, may_set) then
        execute format('grant %I to current_user', program);
      end if;
    exception
      when unique_violation then null; -- as above
      when insufficient_privilege or undefined_object then
        raise exception 'the role % is missing, or not granted to %: let a superuser run "create role payonce_api; create role payonce_worker; create role payonce_console; grant payonce_api, payonce_worker, payonce_console to %" as far as it is not done, and migrate again',
              program, current_user, quote_ident(current_user)
              using errcode = 'insufficient_privilege';
    end;
  end loop;
end
$$;

-- Foreign keys between packages -----------------------------------------------

-- The merchant of an article exists.
alter table stock
  add constraint stock_merchant_id_fkey
      foreign key (merchant_id) references merchants;

-- What a charge leads to ------------------------------------------------------

-- The messages of a charge that are not its events': the provider's, and resends. An event leads
-- to its message by the id, so its message has no entry here.
create index inbox_not_of_events
    on inbox (ordering_key)
 where message_id not like '________-____-____-____-____________';

-- The provider's account ------------------------------------------------------

-- The database works for one account of the provider, in one mode: the ledger's payments
-- are that account's. The first worker binds it.
create table provider_account (
  only_one boolean     not null default true,
  account  text        collate "C" not null,
  live     boolean     not null,
  bound_at timestamptz not null default clock_timestamp(),

  -- One account.
  constraint provider_account_pkey primary key (only_one),

  -- No second one beside it.
  constraint provider_account_only_one_check check (only_one),

  -- It has a name.
  constraint provider_account_account_check check (account <> '')
);
comment on table provider_account is 'the account of the provider that the ledger''s payments are in';
comment on column provider_account.live is 'live mode, which moves money, or test mode';

-- Pauses ----------------------------------------------------------------------

-- An operator pauses a receiver of the worker, or everything of a merchant. A worker reads
-- this table every two seconds and starts no message that is paused.
create table pauses (
  what        text    collate "C" not null,
  merchant_id text    collate "C" not null default '',
  paused      boolean not null,

  -- A receiver or a merchant is paused or not.
  constraint pauses_pkey primary key (what, merchant_id),

  -- A pause is of a merchant or of a receiver.
  constraint pauses_what_check check (what <> '' and (what = 'merchant') = (merchant_id <> ''))
);
comment on table pauses is 'what operators have paused, and what they have resumed since';
comment on column pauses.what is 'a receiver''s name, or merchant';

-- An audit of one merchant sees no other merchant's pauses, so it asks about a message.
create function is_paused(receiver text, merchant text)
returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
select exists (
       select
         from public.pauses
        where paused
          and (what = receiver
               or what <> 'merchant' and receiver = ''
               or what = 'merchant' and merchant_id = merchant))
$$;
comment on function is_paused is 'whether operators have paused a receiver, any of them for an empty name, or a merchant';
revoke execute on function is_paused from public;

-- Operators' actions ----------------------------------------------------------

-- A trigger for each action, which writes operator_actions. None fires for what a program
-- does by itself to these tables.

-- An operator retries a dead letter.
create trigger inbox_retried
 after update of decided_at on inbox
   for each row when (new.decided_at is distinct from old.decided_at and new.status <> 'discarded')
       execute function record_action('inbox retry', id, partition_key, decided_by, '{receiver,message_id,ordering_key,type,status,attempts,deaths,waits}');

-- An operator discards a dead letter.
create trigger inbox_discarded
 after update of decided_at on inbox
   for each row when (new.decided_at is distinct from old.decided_at and new.status = 'discarded')
       execute function record_action('inbox discard', id, partition_key, decided_by, '{receiver,message_id,ordering_key,type,status,attempts,deaths,waits}');

-- A merchant is new or changes.
create trigger merchants_set
 after insert or update on merchants
   for each row
       execute function record_action('merchant set', merchant_id, merchant_id, '', '{fee_basis_points,fee_fixed,one_charge_per_order,webhook_url}');

-- A key is new.
create trigger api_keys_created
 after insert on api_keys
   for each row
       execute function record_action('key create', prefix, merchant_id, '', '{scopes,expires_at,revoked_at}');

-- A key changes, as by a rotation.
create trigger api_keys_changed
 after update of merchant_id, scopes, expires_at on api_keys
   for each row
       execute function record_action('key change', prefix, merchant_id, '', '{scopes,expires_at,revoked_at}');

-- A key is revoked. Its hash is not stored.
create trigger api_keys_revoked
 after update of revoked_at on api_keys
   for each row
       execute function record_action('key revoke', prefix, merchant_id, '', '{scopes,expires_at,revoked_at}');

-- A webhook secret is new. The secret is not stored.
create trigger webhook_secrets_created
 after insert on webhook_secrets
   for each row
       execute function record_action('webhook secret create', generation, merchant_id, created_by, '{generation,ends_at}');

-- A webhook secret gets an end.
create trigger webhook_secrets_ended
 after update of ends_at on webhook_secrets
   for each row
       execute function record_action('webhook secret end', generation, merchant_id, '', '{generation,ends_at}');

-- An operator asks for a webhook once more.
create trigger inbox_resend_requested
 after insert on inbox
   for each row when (new.type = 'webhook.resend')
       execute function record_action('webhook resend', event_id, partition_key, 'requested_by', '{message_id,event_id,ordering_key,receiver}');

-- An operator pauses or resumes.
create trigger pauses_set
 after insert or update on pauses
   for each row
       execute function record_action('pause set', what, merchant_id, '', '{what,merchant_id,paused}');

-- Units of an article come in, their number is corrected, or the article goes.
create trigger stock_supplied
 after insert or delete or update of supplied on stock
   for each row
       execute function record_action('stock supply', sku, merchant_id, '', '{supplied}');

-- A restore is repaired.
create trigger restore_mark_written
 after insert or update on restore_mark
   for each row
       execute function record_action('outbox repair', written_in, '', '', '{written_in}');

-- Sessions of the server ------------------------------------------------------

-- A session may be ended by its own user and by a superuser. This function ends sessions
-- that hold up others, as far as the owner of the function may.
--
-- Those of our programs stand in the middle of a batch that their program does not send to
-- its end.
--
-- Those of the api and the console are known by their database user, who alone is not chosen
-- by the session. A transaction number holds back the followers of the ledger in every database
-- of the server, a snapshot vacuum, and a lock of a table migrations. An advisory lock outlives
-- its transaction, and these programs take none. Who may also act as the worker, as a
-- superuser may, is no user of theirs. A commit that waits for its standby would become visible.
create function end_stuck_sessions(program text, half_sent interval, held interval)
returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
return (with locking as materialized (
  select pid
    from pg_locks
   where locktype = 'advisory'
), suspects as materialized ( -- few of many sessions, before their users are looked up
  select *
    from pg_stat_activity
   where pid <> pg_backend_pid()
     and (xact_start < clock_timestamp() - least(half_sent, held) or pid in (select pid from locking))
)
select count(*) filter (where pg_terminate_backend(a.pid))
  from suspects a
  join pg_roles r
    on r.oid = a.usesysid
 cross join lateral (
       select pg_has_role(r.oid, 'payonce_api', 'member')
              or pg_has_role(r.oid, 'payonce_console', 'member') as client,
              pg_has_role(r.oid, 'payonce_worker', 'member') as worker,
              a.datname = current_database()                 as here) is_of
 where (pg_has_role(current_user, r.oid, 'usage')
        or pg_has_role(current_user, 'pg_signal_backend', 'usage') and not r.rolsuper)
   and (here
        and (client or worker)
        and a.application_name like program || '%'
        and a.state = 'active'
        and a.wait_event = 'ClientRead'
        and a.backend_xid is not null
        and a.xact_start < clock_timestamp() - half_sent
        or
        client and not worker
        and a.wait_event is distinct from 'SyncRep'
        and ((here or a.backend_xid is not null) and a.xact_start < clock_timestamp() - held
             or here and a.pid in (select pid from locking))));
end
$$;
comment on function end_stuck_sessions is 'ends sessions that hold up others: those whose program sent half a batch and stopped, and those of the api and the console that are older than a request; returns how many';
revoke execute on function end_stuck_sessions from public;
grant execute on function end_stuck_sessions to payonce_worker;

-- Grants ----------------------------------------------------------------------

revoke create on schema public from public;
grant usage on schema public to payonce_api, payonce_worker, payonce_console;

-- All programs check the schema's version at start.
grant select on payonce_migrations to payonce_api, payonce_worker, payonce_console;

-- The ledger is read and appended to. Position, transaction and time of an event are the
-- database's own.
grant select,
      insert (event_id, stream_id, version, type, webhook, merchant_id, data, metadata, occurred_at)
   on ledger_events to payonce_api, payonce_worker;
grant select, insert on ledger_postings to payonce_api, payonce_worker;
grant execute on function ledger_epoch, ledger_order, charge_by_payment_intent to payonce_api, payonce_worker;

-- The api holds an order in the commit that accepts its charge. The worker frees it in the
-- commit that fails the charge.
grant select, insert on held_orders to payonce_api;
grant select, delete on held_orders to payonce_worker;

-- The worker adds up the balances, and the api reads them.
grant select on followers, account_balances to payonce_api, payonce_worker;
grant update (txid, position, highest) on followers to payonce_worker;
grant insert, update on account_balances to payonce_worker;

-- The api claims keys, the worker deletes expired answers.
grant select,
      insert (scope, operation, key, fingerprint, request, status_code, headers, body, expires_at)
   on idempotency_keys to payonce_api;
grant select,
      update (body, request, headers)
   on idempotency_keys to payonce_worker;

-- The api sends messages. The worker sends, receives and handles them.
grant insert (topic, message_id, payload, metadata) on outbox to payonce_api;
grant select, insert (topic, message_id, payload, metadata), delete on outbox to payonce_worker;
grant select, insert, update on outbox_topics to payonce_worker;
grant select on restore_guard to payonce_api, payonce_worker;
grant select,
      insert (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, status, first, last_error),
      update (status, first, nudged, due_at, attempts, deaths, waits, waiting_since, fence, done_fence, holder, claimed_at, history, duplicates, duplicated_at, last_error, finished_at),
      delete
   on inbox to payonce_worker;
grant select, insert, update (alive_until), delete on inbox_holders to payonce_worker;
grant select on inbox_holders to payonce_console;

-- The worker moves stock.
grant select on stock, reservations to payonce_worker;
grant update (available, reserved, sold) on stock to payonce_worker;
grant insert, update (status) on reservations to payonce_worker;

-- The worker reads where a merchant's webhooks go, and signs them. Operators register, replace and
-- resend. API keys are read only through api_keys_by_hash.
grant select (merchant_id, webhook_url) on merchants to payonce_worker;
grant select on webhook_secrets to payonce_worker;
grant execute on function api_keys_by_hash to payonce_api;

-- The console shows what all merchants' charges did, and no payload of a request, no secret and
-- no API key. It changes nothing.
grant select
   on ledger_events, ledger_postings, held_orders, followers, account_balances,
      outbox, inbox, stock, reservations, operator_actions
   to payonce_console;
grant select (scope, operation, key, status_code, headers, body, created_at, expires_at) on idempotency_keys to payonce_console;
grant select (merchant_id) on merchants to payonce_console;

-- The first worker binds the account, and none binds another.
grant select (account, live, only_one), insert (account, live) on provider_account to payonce_worker;

-- Operators pause, the worker reads what is paused, and every audit asks.
grant select on pauses to payonce_worker;
grant execute on function is_paused to payonce_worker, payonce_console;

-- One program's own.
grant select on audit_results to payonce_worker;

-- The worker audits what is new, and operators all of it.
grant select on audit_recent to payonce_worker;
grant select, update (checked, violated) on audit_progress to payonce_worker;

-- Row-level security ----------------------------------------------------------

-- The worker works for all merchants, and the console reads for all of them.
do $$
declare
  rows text;
begin
  foreach rows in array array['ledger_events', 'ledger_postings', 'held_orders', 'account_balances', 'idempotency_keys',
                              'outbox', 'inbox', 'stock', 'reservations', 'merchants'] loop
    execute format('alter table %I enable row level security', rows);
    execute format('create policy worker on %I to payonce_worker using (true) with check (true)', rows);
    execute format('create policy console on %I for select to payonce_console using (true)', rows);
  end loop;
end
$$;

alter table api_keys         enable row level security;
alter table webhook_secrets  enable row level security;
alter table operator_actions enable row level security;
create policy worker on webhook_secrets for select to payonce_worker using (true);
create policy console on operator_actions for select to payonce_console using (true);

-- The api acts for one merchant: it reads the rows of the merchant that its transaction
-- names. Once a session has set the setting it is '' and not null afterwards, which is no
-- merchant's name.
create policy tenant on ledger_postings for select to payonce_api
 using (merchant_id = current_setting('payonce.merchant', true));
create policy tenant on held_orders for select to payonce_api
 using (merchant_id = current_setting('payonce.merchant', true));
create policy tenant on account_balances for select to payonce_api
 using (merchant_id = current_setting('payonce.merchant', true));
create policy tenant on idempotency_keys for select to payonce_api
 using (scope = current_setting('payonce.merchant', true));

-- The empty text keeps this condition out of indexes. merchant_id is the last column of
-- ledger_events_version_once; with a bare column the planner may read all of that index in
-- place of the end of ledger_events_pkey. Test: TestPlans_doNotDependOnStatistics.
create policy tenant on ledger_events for select to payonce_api
 using (merchant_id || '' = current_setting('payonce.merchant', true));

-- What the api writes ---------------------------------------------------------

-- An attacker who has the api's login can name any merchant. These policies leave nothing
-- but what a request of that merchant could have caused: no outcome, no posting of one, no
-- message about one. Test: migrations.TestHostileAPI_insertsWhatARequestCauses.

-- The policy below refuses it, since two items of an article have one reservation.
create function names_an_article_twice(items jsonb)
returns boolean
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return (select count(*) > count(distinct coalesce(item ->> 'sku', ''))
            from jsonb_array_elements(items) item);
end
$$;
comment on function names_an_article_twice is 'whether two of the items of a charge have one sku';
revoke execute on function names_an_article_twice from public;
grant execute on function names_an_article_twice to payonce_api;

-- A request asks for a charge, a cancellation or a refund. The first event of a stream is
-- the charge, and its data names the merchant whose stream it is: the worker believes it.
-- The api's events say that the api caused them. Their ids have version 8, and those of the
-- worker version 5, so no request takes the id of an event that the worker is going to
-- append. A time far from now is one that no reader could show, and a long text fits in no index. A
-- statement may name one merchant after another, so no condition is computed once for all its rows.
--
-- A request that the program cannot read, or whose amounts no charge may have, is void there
-- (domain.Charge.Voids), but its posting would stay in the balances. So each member is one of the
-- event's and has its type, and each number is whole and in its range. Readers hold the text of JSON,
-- which escapes make up to six times as long as what is stored: with 100 refunds (refuse_void_request)
-- the api writes less than 4 MiB of it to a charge, of which programs read 16 MiB.
--
-- What JSON says is asked by paths, since each insert sets up every function of the policy anew.
create policy request on ledger_events for insert to payonce_api
  with check (merchant_id = current_setting('payonce.merchant', true)
              and version >= 1
              and (version = 1) = (type = 'charge.requested.v1')
              and data - case type
                           when 'charge.requested.v1'
                           then '{merchant_id,order_id,amount,currency,fee,payment_method,customer,items,description,metadata,
                                  return_url,expires_at,notify,one_charge_per_order,reference,steps,skipped}'::text[]
                           when 'charge.cancel_requested.v1'
                           then '{}'::text[]
                           when 'refund.requested.v1'
                           then '{refund_id,amount,reason,notify}'::text[]
                         end = '{}'
              and data @@ case type
                            when 'charge.requested.v1'
                            then '$.amount >= 1 && $.amount <= 1000000000000 && $.steps[*] == "payment" &&
                                  !($.merchant_id.type()    != "string" || $.order_id.type()   != "string" || $.currency.type()    != "string" ||
                                    $.payment_method.type() != "string" || $.customer.type()   != "string" || $.description.type() != "string" ||
                                    $.return_url.type()     != "string" || $.expires_at.type() != "string" || $.reference.type()   != "string" ||
                                    $.amount.type() != "number"  || $.fee.type() != "number"   || $.fee < 0 || $.fee > $.amount    ||
                                    $.notify.type() != "boolean" || $.one_charge_per_order.type() != "boolean"                     ||
                                    $.steps.type()  != "array"   || $.steps[*].type()    != "string"                               ||
                                    $.skipped.type()  != "array" || $.skipped[*].type()  != "string" || $.skipped[*] == "payment"   ||
                                    $.metadata.type() != "object" || $.metadata.*.type() != "string"                               ||
                                    $.items.type() != "array" || $.items[*].type() != "object" || $.items[*].sku.type() != "string" ||
                                    exists($.items[*].keyvalue() ? (@.key != "sku" && @.key != "quantity"))                        ||
                                    exists($.items[*] ? (!(@.quantity.type() == "number" && @.quantity >= 1 && @.quantity <= 1000000))) ||
                                    exists($.return_url) && !($.return_url like_regex "^https://" flag "i")                        ||
                                    exists($.expires_at) && !($.expires_at like_regex
                                      "^\\d{4}-\\d\\d-\\d\\dT([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)$"))'::jsonpath
                            when 'charge.cancel_requested.v1'
                            then '!exists($.*)'::jsonpath
                            when 'refund.requested.v1'
                            then '$.amount >= 1 && $.amount <= 1000000000000 && $.refund_id starts with "re_" &&
                                  !($.refund_id.type() != "string" || $.reason.type() != "string" || $.amount.type() != "number" || $.notify.type() != "boolean")'::jsonpath
                          end
              and concat(data ->> 'amount', data ->> 'fee', jsonb_path_query_array(data, '$.items[*].quantity')) not like '%.%'
              and case version
                    when 1
                    then data ->> 'merchant_id' = merchant_id
                     and data ->> 'reference' like 'ref\_' || left(encode(sha256(convert_to(merchant_id, 'UTF8')), 'hex'), 16) || '%'
                     and length(data ->> 'reference') <= 100
                     and length(data ->> 'order_id') <= 255
                     and coalesce(length(data ->> 'return_url') <= 2048, true)
                     and coalesce((data ->> 'expires_at')::timestamptz
                                  between now() - interval '24 hours' and '9999-01-01 00:00+00', true)
                     and not (data @@ '$.items.size() > 1' and names_an_article_twice(data -> 'items'))
                    else coalesce(length(data ->> 'refund_id') <= 255, true)
                  end
              and pg_column_size(data || '{}') + pg_column_size(metadata || '{}') <= case version when 1 then 262144 else 4096 end
              and metadata @@ '$.type() == "object" && $.actor == "api" && !($.*.type() != "string")'
              and length(stream_id) <= 64
              and length(merchant_id) between 1 and 255
              and not webhook
              and get_byte(uuid_send(event_id), 6) >> 4 = 8
              and occurred_at between now() - interval '24 hours' and now() + interval '24 hours');

-- What a policy cannot say, since it depends on the events before: a charge is canceled once, before
-- its outcome, and refunded up to what is left of it, in at most domain.MaxRefunds requests. These are
-- the conditions of the program's own decision, in which a refund that failed or was reversed is
-- returned to what is left.
--
-- If the function sees versions 1 to n, the new one, it has seen every committed refund, since a later
-- one cannot get a lower version: an event refers to the one before it. If not, the function refuses,
-- whatever the isolation level, and however long the statement ran before its insert.
-- Test: migrations.TestHostileAPI_refundsNoMoreThanIsLeft.
create function refuse_void_request() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  allowed boolean;
begin
  with events as (
    select type,
           data
      from public.ledger_events
     where stream_id = new.stream_id
       and version <= new.version
  ), charge as (
    select count(*) = new.version                                             as seen,
           count(*) filter (where type like 'charge.cancel_requested.v%') = 1 as canceled_once,
           bool_or(type like 'charge.succeeded.v%')                           as succeeded,
           bool_or(type like 'charge.failed.v%')                              as failed,
           max((data ->> 'amount')::bigint)
               filter (where type like 'payment.captured.v%')                 as captured
      from events
  ), refunds as (
    select data ->> 'refund_id'              as id,
           count(*)                          as events,
           max((data ->> 'amount')::bigint)  as amount,
           bool_or(type like 'refund.failed.v%' or type like 'refund.reversed.v%') as returned
      from events
     where type like 'refund.%'
     group by 1
  )
  select seen
     and case new.type
           when 'refund.requested.v1'
           then succeeded
            and (select count(*) <= 100
                    and sum(amount) filter (where not returned) <= captured
                    and bool_or(id = new.data ->> 'refund_id' and events = 1)
                   from refunds)
           else canceled_once and captured is null and not succeeded and not failed
         end
    into allowed
    from charge;
  if allowed is not true then
    raise exception 'charge % does not allow a % as version %', new.stream_id, new.type, new.version
      using errcode = 'insufficient_privilege';
  end if;
  return null;
end
$$;
comment on function refuse_void_request is 'the trigger of ledger_events for users that are not the worker';
revoke execute on function refuse_void_request from public;

-- After the insert, when the other rows of the statement are there too.
create trigger ledger_events_of_the_api
 after insert on ledger_events
   for each row
  when (new.version > 1 and not pg_has_role('payonce_worker', 'member'))
  execute function refuse_void_request();

-- A request has one posting, and its event says which: what the customer owes for a charge,
-- what is to be returned for a refund. The key of the table allows it once.
create policy request on ledger_postings for insert to payonce_api
  with check (leg = 1
              and merchant_id = current_setting('payonce.merchant', true)
              and (select case e.type
                            when 'charge.requested.v1'
                            then debit  = 'customer_receivable:' || e.merchant_id || ':' || currency
                             and credit = 'merchant_pending:'    || e.merchant_id || ':' || currency
                             and currency = e.data ->> 'currency'
                            when 'refund.requested.v1'
                            then debit  = 'merchant_payable:' || e.merchant_id || ':' || currency
                             and credit = 'refund_clearing:'  || e.merchant_id || ':' || currency
                             and currency = (select c.data ->> 'currency'
                                               from ledger_events c
                                              where c.stream_id = ledger_postings.stream_id
                                                and c.version = 1)
                          end
                     and e.data ->> 'amount' = amount::text
                    from ledger_events e
                   where e.stream_id = ledger_postings.stream_id
                     and e.version = ledger_postings.version));

-- A charge holds its own order, if it wants to be the only one, and only by the commit that
-- accepts it: the order of a charge that has failed stays free.
create policy request on held_orders for insert to payonce_api
  with check (merchant_id = current_setting('payonce.merchant', true)
              and (select e.data ->> 'order_id' = held_orders.order_id
                      and e.data ->> 'one_charge_per_order' = 'true'
                      and e.txid = ledger_order(pg_current_xact_id())
                     from ledger_events e
                    where e.stream_id = held_orders.stream_id
                      and e.version = 1));

-- A message of the api is an event of the provider, of a bounded size and under an id that no
-- other message has, or wakes the worker for a request that is in the ledger, and says what
-- the ledger says: the payload is that of ledger.Stream.EncodeEnvelope, to the byte. A topic without
-- a reader would keep its messages for ever.
create policy request on outbox for insert to payonce_api
  with check (topic = 'charges'
              and case
                    when metadata ->> 'type' ~ '^stripe\.(payment_intent\.|refund\.|charge\.dispute\.|charge\.refunded$|charge\.refund\.updated$)'
                    then message_id !~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                     and length(metadata ->> 'type') <= 255
                     and octet_length(payload) <= 4096
                     and pg_column_size(metadata || '{}') <= 4096
                     and metadata ->> 'partition_key' = current_setting('payonce.merchant', true)
                     and (select merchant_id
                            from ledger_events
                           where stream_id = outbox.metadata ->> 'ordering_key'
                             and version = 1) = current_setting('payonce.merchant', true)
                    else (select outbox.message_id = e.event_id::text
                             and outbox.metadata ->> 'type' = e.type
                             and e.type like '%requested.v1'
                             and outbox.metadata ->> 'ordering_key' = coalesce(e.data ->> 'refund_id', e.stream_id)
                             and outbox.metadata ->> 'partition_key' = e.merchant_id
                             and outbox.payload = convert_to(format('{"id":"%s","type":"%s","charge_id":"%s","version":%s}',
                                                             outbox.message_id, e.type, e.stream_id, e.version), 'UTF8')
                            from ledger_events e
                           where e.event_id = outbox.message_id::uuid)
                  end);

-- A key is answered for its merchant, expires at a time that a reader can show, and is no
-- longer than a reader can hold. A concatenation is not compressed.
create policy request on idempotency_keys for insert to payonce_api
  with check (scope = current_setting('payonce.merchant', true)
              and expires_at between now() - interval '24 hours' and now() + interval '1000 years'
              and octet_length(body)
                + coalesce(octet_length(request), 0)
                + pg_column_size(headers || '{}') <= 1048576
              and length(operation) <= 255
              and length(key) <= 255
              and coalesce(length(headers #>> '{Location,0}'), 0) <= 1024);

