-- +goose Up
-- Promise: tables that came through a dump are told from those that did not, for
-- ever, whatever numbers the server counts. Offsets, checkpoints and the order of
-- the outbox are transaction ids of the server that wrote them, and another server
-- gives the same numbers to other transactions.

-- What a dump does not carry is the transaction that really wrote a row, and the
-- columns that a table once had. A copy of the files carries both, and so do a
-- standby, a database made from a template, pg_upgrade, VACUUM FULL and CLUSTER.
-- The server's identifier would not do: a server and its snapshot share one, and
-- pg_upgrade, which keeps transactions, makes another.
create table numbering_mark (
  scar       boolean,
  only_one   boolean not null default true primary key check (only_one),
  written_in xid8    not null
);
alter table numbering_mark
 drop column scar;
comment on table numbering_mark is 'whether the stored transaction ids are this server''s: payonce outbox repair makes it so. Change no row by hand';
comment on column numbering_mark.written_in is 'the transaction that wrote this row; its xmin says so too, unless it was copied';

-- False where the row is missing: who does not know receives nothing.
create view numbering as
select exists (
         select
           from numbering_mark
          where only_one
            and xmin = written_in::xid)
   and exists (
         select
           from pg_catalog.pg_attribute
          where attrelid = 'numbering_mark'::regclass
            and attnum > 0
            and attisdropped) as own;
comment on view numbering is 'whether the stored transaction ids are this server''s own';

-- A database that is older than this table is believed, unless it names a
-- transaction that the server has not had.
insert into numbering_mark (written_in)
select pg_current_xact_id()
 where not exists (select from outbox_offsets where transaction_id >= pg_snapshot_xmax(pg_current_snapshot()))
   and not exists (select from ledger_events where txid >= pg_snapshot_xmax(pg_current_snapshot()))
   and not exists (select from projections where txid >= pg_snapshot_xmax(pg_current_snapshot()));

-- The view is read with its owner's rights; the mark is the owner's alone.
grant select on numbering to payonce_worker;
