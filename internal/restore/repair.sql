-- What came with the dump keeps its order numbers: they are below those of the next epoch.
do $$
begin
  execute format('create or replace function ledger_epoch() returns bigint language sql stable return %s::bigint', ledger_epoch() + 1);
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
