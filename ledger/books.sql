-- Promise: what is read of all charges, such as balances and exports, follows from the events and
-- postings of schema.sql, and programs see that these were restored from a dump.

-- For bookkeeping and reports. The view reads with its owner's rights, past row-level security,
-- so no program may read it. A role that only reads this view sees the postings of all merchants
-- and no other table.
create view ledger_export as
select e.event_id,
       e.stream_id as charge_id,
       e.version,
       p.leg,
       e.recorded_at,
       e.type,
       e.merchant_id,
       (select data ->> 'order_id'
          from ledger_events
         where stream_id = e.stream_id
           and version = 1) as order_id,
       p.debit,
       p.credit,
       round(p.amount / 10::numeric ^ digits, digits) as amount,
       p.currency
  from ledger_postings p
  join ledger_events e using (stream_id, version)
 cross join lateral (
         select case
                  when p.currency in ('BIF', 'CLP', 'DJF', 'GNF', 'ISK', 'JPY', 'KMF', 'KRW', 'PYG', 'RWF', 'UGX', 'UYI', 'VND', 'VUV', 'XAF', 'XOF', 'XPF') then 0
                  when p.currency in ('BHD', 'IQD', 'JOD', 'KWD', 'LYD', 'OMR', 'TND') then 3
                  when p.currency in ('CLF', 'UYW') then 4
                  else 2
                end as digits) d;
comment on view ledger_export is 'every posting with its event and order, in units of its currency';

-- What the provider withholds for disputes that are open: the merchant bears it already, so it is
-- posted nowhere else. As ledger_export, the view reads past row-level security.
create view disputes_withheld as
select stream_id             as charge_id,
       merchant_id,
       data ->> 'dispute_id' as dispute_id,
       (select data ->> 'currency'
          from ledger_events
         where stream_id = d.stream_id
           and version = 1)  as currency,
       sum((data ->> 'amount')::bigint * case
             when type like 'charge.dispute\_withdrawn.v%'  then 1
             when type like 'charge.dispute\_reinstated.v%' then -1
             else 0
           end)::bigint      as withheld
  from ledger_events d
 where type like 'charge.dispute\_%'
 group by stream_id, merchant_id, data ->> 'dispute_id'
having coalesce((array_agg(data ->> 'status' order by version desc) filter (where data ? 'status'))[1], 'open') = 'open';
comment on view disputes_withheld is 'the money of open disputes, without fees, in minor units of the currency of the charge';

-- A follower reads all events in their order, each once. Its row says how far it is, and is
-- moved by the transaction that stores what the follower makes of the events.
create table followers (
  name     text   collate "C" not null,
  txid     xid8   not null default '0',
  position bigint not null default 0,
  highest  bigint not null default 0,

  -- A follower is at one place.
  constraint followers_pkey primary key (name)
) with (fillfactor = 50);
comment on table followers is 'how far each reader of the ledger is: every event up to and including (txid, position)';
comment on column followers.highest is 'the highest position of an event that was read';

insert into followers (name) values ('balances');

-- The sums of all postings up to the place of the follower balances. A reader adds the postings
-- behind it.
create table account_balances (
  merchant_id text    collate "C" not null,
  account     text    collate "C" not null,
  debits      numeric not null,
  credits     numeric not null,

  -- An account has one balance.
  constraint account_balances_once primary key (merchant_id, account)
) with (fillfactor = 80);
comment on table account_balances is 'the sums of a merchant''s postings on each account';
comment on column account_balances.account is 'kind:owner:currency';
comment on column account_balances.debits is 'minor units; numeric, so that no sum is too large';

-- A mark distinguishes tables that were restored from a dump from the others, whatever
-- transaction the server counts.
--
-- A dump does not carry the transaction that really wrote a row, nor the columns
-- that a table once had. A copy of the files carries both, and so do a standby, a
-- database made from a template, pg_upgrade, VACUUM FULL and CLUSTER. The server's
-- identifier would not do: a server and its snapshot share one, and pg_upgrade,
-- which keeps transactions, makes a new one.
create table restore_mark (
  dropped    boolean,
  only_one   boolean not null default true,
  written_in xid8    not null,

  -- One mark.
  constraint restore_mark_pkey primary key (only_one),

  -- No second one beside it.
  constraint restore_mark_only_one_check check (only_one)
);
alter table restore_mark
 drop column dropped;
comment on table restore_mark is 'whether these tables came through a dump since they were made or repaired. Do not change the row by hand';
comment on column restore_mark.written_in is 'the transaction that wrote this row; its xmin is the same unless the row was copied';

insert into restore_mark (written_in) values (pg_current_xact_id());

-- False if the row is missing, and if an event has a number that the server has not reached.
create view restore_guard as
select exists (
         select
           from restore_mark
          where only_one
            and xmin = written_in::xid)
   and exists (
         select
           from pg_catalog.pg_attribute
          where attrelid = 'restore_mark'::regclass
            and attnum > 0
            and attisdropped)
   and not exists (
         select
           from ledger_events
          where txid >= ledger_order(pg_snapshot_xmax(pg_current_snapshot()))) as is_original;
comment on view restore_guard is 'whether the order numbers are this server''s own; programs refuse to start while they are not';
