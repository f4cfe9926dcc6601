-- Promise: fresh.restore() brings a database back to the rows and the sequences that its
-- migrations left, or raises an error if that is not possible.
create schema fresh;

-- The catalog changes with every change of a table, an index, a sequence, a constraint, a
-- trigger, a policy, a function, a grant or the mark of a restore: none can be restored.
create function fresh.catalog()
returns text
language sql
as $$
select md5(string_agg(entry, ' ' order by entry))
  from (
        select oid || ' ' || xmin from pg_class where relnamespace = 'public'::regnamespace
        union all
        select oid || ' ' || xmin from pg_constraint where connamespace = 'public'::regnamespace
        union all
        select oid || ' ' || xmin from pg_proc where pronamespace = 'public'::regnamespace
        union all
        select oid || ' ' || xmin from pg_trigger
        union all
        select oid || ' ' || xmin from pg_policy
        union all
        select written_in || ' ' || xmin from public.restore_mark
       ) as entries(entry)
$$;

-- Copies of the rows, by table, and the sequences.
create table fresh._tables (
  name name,
  kept boolean -- whether the migrations inserted rows
);
do $$
declare
  t name;
  kept bigint;
begin
  for t in select relname from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace loop
    execute format('create table fresh.%I as table public.%I', t, t);
    get diagnostics kept = row_count;
    insert into fresh._tables values (t, kept > 0);
  end loop;
end
$$;
create table fresh._sequences as
select format('%I.%I', schemaname, sequencename)::regclass as sequence,
       coalesce(last_value, start_value) as value,
       last_value is not null as is_called
  from pg_sequences
 where schemaname = 'public';
create table fresh._catalog as
select fresh.catalog() as catalog;

-- No trigger, and so no foreign key, is in the way of the statements. A row that is as it
-- was keeps its xmin, by which restore_guard knows its server.
create function fresh.restore()
returns void
language plpgsql
set jit = off
as $$
declare
  t    name;
  kept boolean;
begin
  -- A session whose connection was cut may still work, and commit later.
  if not (select coalesce(bool_and(pg_terminate_backend(pid, 10000)), true)
            from pg_stat_activity
           where datname = current_database()
             and pid <> pg_backend_pid()
             and state <> 'idle') then
    raise exception 'a session still works';
  end if;
  if fresh.catalog() <> (select catalog from fresh._catalog) then
    raise exception 'the schema has changed';
  end if;
  perform set_config('session_replication_role', 'replica', true);
  for t, kept in table fresh._tables loop
    if kept then
      execute format('delete from public.%I t where t::text not in (select f::text from fresh.%I f)', t, t);
      execute format('insert into public.%I overriding system value select * from fresh.%I f where f::text not in (select t::text from public.%I t)', t, t, t);
    else
      execute format('delete from public.%I', t);
    end if;
  end loop;
  perform setval(sequence, value, is_called) from fresh._sequences;
end
$$;
