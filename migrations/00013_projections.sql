-- +goose Up
-- Promise: a projection is what the ledger says up to its checkpoint, and nothing
-- else. Rows and checkpoint move in one commit, each event is folded once, and of
-- two who fold the same events one is refused. A new generation is built beside
-- the live one and takes its place in one commit.

create table projections (
  generation         bigint   generated always as identity primary key,
  state              text     not null check (state in ('building', 'live', 'retired')),
  txid               xid8     not null default '0',
  position           bigint   not null default 0,
  highest            bigint   not null default 0,
  batch              bigint   not null default 0,
  after              bigint   not null default -1,
  took_over_txid     xid8     not null default '0',
  took_over_position bigint   not null default 0,
  constraint projections_folded_once check (batch = after + 1),
  constraint projections_never_behind
       check (txid > took_over_txid
           or txid = took_over_txid and position >= took_over_position)
) with (fillfactor = 50);
comment on table projections is 'how far charge_list and account_balances have folded the ledger: everything up to and including (txid, position)';
comment on column projections.state is 'live: the one that is read; building: to be compared with it and take its place; retired: nobody writes to it any more';
comment on column projections.highest is 'the highest position of an event that was folded';
comment on column projections.batch is 'grows with every commit that moves this row';
comment on column projections.after is 'the batch that the newest one was read after: whoever read before another one moved the row is refused';
comment on column projections.took_over_txid is 'with took_over_position, where the generation before it stood when this one took its place';

create unique index projections_one_live
    on projections (state)
 where state = 'live';

create unique index projections_one_building
    on projections (state)
 where state = 'building';

insert into projections (state) values ('live');

create table charge_list (
  generation  bigint      not null,
  charge_id   text        not null,
  merchant_id text        not null,
  order_id    text        not null,
  status      text        not null,
  created_at  timestamptz not null,
  version     int         not null,
  view        json        not null,
  constraint charge_list_once primary key (generation, charge_id)
);
comment on table charge_list is 'projection: each charge as its merchant sees it';
comment on column charge_list.created_at is 'when the first event occurred; with charge_id the order of the list';
comment on column charge_list.version is 'how many events of the charge are folded in';
comment on column charge_list.view is 'the charge as the API shows it, byte for byte: hence json and not jsonb';

create index charge_list_by_time
    on charge_list (generation, merchant_id, created_at, charge_id);

create index charge_list_by_order
    on charge_list (generation, merchant_id, order_id, created_at, charge_id);

create index charge_list_by_status
    on charge_list (generation, merchant_id, status, created_at, charge_id);

create table account_balances (
  generation  bigint  not null,
  merchant_id text    not null,
  account     text    not null,
  debits      numeric not null,
  credits     numeric not null,
  constraint account_balances_once primary key (generation, merchant_id, account)
) with (fillfactor = 80);
comment on table account_balances is 'projection: what the postings of a merchant''s charges come to on each account';
comment on column account_balances.account is 'kind:owner:currency';
comment on column account_balances.debits is 'minor units; numeric, so that no sum, however absurd, stops the projector for everybody';

-- The order in which the ledger is folded. Entries go to its right end.
create index ledger_events_in_order
    on ledger_events (txid, position);

-- The worker folds; the api reads, a merchant's own. A generation is begun, put
-- in its place and removed by operators.
grant select on projections, charge_list, account_balances to payonce_api, payonce_worker;
grant update (txid, position, highest, batch, after) on projections to payonce_worker;
grant insert, update on charge_list, account_balances to payonce_worker;

alter table charge_list      enable row level security;
alter table account_balances enable row level security;

create policy worker on charge_list      to payonce_worker using (true) with check (true);
create policy worker on account_balances to payonce_worker using (true) with check (true);

create policy tenant on charge_list for select to payonce_api
 using (merchant_id = current_setting('payonce.merchant', true));
create policy tenant on account_balances for select to payonce_api
 using (merchant_id = current_setting('payonce.merchant', true));
