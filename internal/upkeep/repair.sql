-- Transactions that are writing events end first: their numbers belong below the next epoch, before a
-- reader passes it.
lock table ledger_events in share row exclusive mode;

-- What came with the dump keeps its order numbers: they are below those of the next epoch, whatever
-- epoch the function came with.
do $$
declare
  next bigint := greatest(ledger_epoch(), (select max(txid::text::bigint >> 48) from (select txid from ledger_events order by txid desc, position desc limit 1) newest)) + 1;
begin
  execute format('create or replace function %s.ledger_epoch() returns bigint language sql stable return %s::bigint',
    (select pronamespace::regnamespace from pg_proc where oid = 'ledger_epoch()'::regprocedure), next);
end
$$;

-- Logical replication copies rows and no sequences. One that is not behind stays: a program may have its
-- next value.
do $$
declare
  of record;
begin
  for of in
    select attrelid::regclass as relation,
           attname
      from pg_attribute
      join pg_class on pg_class.oid = attrelid
     where attidentity <> ''
       and relnamespace = (select pronamespace from pg_proc where oid = 'ledger_epoch()'::regprocedure)
  loop
    execute format('select setval(of, last) from (select pg_get_serial_sequence(%1$L, %2$L)::regclass as of, max(%2$I) as last from %1$s) as s'
                   ' where last > coalesce(pg_sequence_last_value(of), 0)', of.relation, of.attname);
  end loop;
end
$$;

-- A dump carries neither the transaction that wrote a row nor a dropped column.
alter table restore_mark
  add column dropped boolean;

alter table restore_mark
 drop column dropped;

insert into restore_mark (written_in)
values (pg_current_xact_id())
    on conflict (only_one) do update
   set written_in = excluded.written_in;
