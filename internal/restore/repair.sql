-- Numbers the events of the ledger anew, in one transaction. A server's own transactions begin
-- at 3 and are in the hundreds before a table is made, so all that is committed later is newer.
-- Within each number the order is that of the position, which follows the versions of a stream.
--
--   1  added to the balances
--   2  not added yet

-- A reader waits for the lock before it reads, so no reader continues with numbers that are
-- gone. The order is that of most programs; a repair that meets another order, or another
-- repair, gives up its try.
lock table ledger_events, followers, numbering_mark
  in access exclusive mode;

alter table ledger_events
disable trigger ledger_events_append_only;

with numbered as (
  select e.position,
         (case when (e.txid, e.position) > (f.txid, f.position) then '2' else '1' end)::xid8 as txid
    from ledger_events e
    join followers f
      on f.name = 'balances'
)
update ledger_events e
   set txid = n.txid
  from numbered n
 where n.position = e.position;

alter table ledger_events
 enable trigger ledger_events_append_only;

update followers
   set txid     = coalesce((select txid from ledger_events where txid = '1' limit 1), '0'),
       position = coalesce((select position from ledger_events where txid = '1' order by position desc limit 1), 0);

-- A dump carries neither the transaction that wrote a row nor a dropped column.
alter table numbering_mark
  add column dropped boolean;

alter table numbering_mark
 drop column dropped;

insert into numbering_mark (written_in)
values (pg_current_xact_id())
    on conflict (only_one) do update
   set written_in = excluded.written_in;
