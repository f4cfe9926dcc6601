-- One line for each right and policy in the schema of the service.

-- Effective privileges, so those that PUBLIC or another role passes on are among them. A
-- privilege on all columns is written as one on the table.
with verbs(verb, rank) as (
  values ('SELECT', 1), ('INSERT', 2), ('UPDATE', 3), ('DELETE', 4), ('TRUNCATE', 5), ('REFERENCES', 6), ('TRIGGER', 7)
), relations as (
  select oid, relname, relkind, relrowsecurity
    from pg_class
   where relnamespace = 'public'::regnamespace
     and relkind in ('r', 'p', 'v', 'm', 'f')
), held as (
  select c.relname,
         role,
         v.rank,
         case
           when has_table_privilege(role, c.oid, v.verb) then lower(v.verb)
           else (select lower(v.verb) || ' (' || string_agg(a.attname, ', ' order by a.attnum) || ')'
                   from pg_attribute a
                  where a.attrelid = c.oid
                    and a.attnum > 0
                    and not a.attisdropped
                    and case
                          when v.verb in ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
                          then has_column_privilege(role, c.oid, a.attnum, v.verb)
                        end)
         end as privilege
    from relations c
   cross join verbs v
   cross join unnest(array['payonce_api', 'payonce_worker', 'payonce_console', 'public']) as role
)
select format('%s: %s: %s', relname, role, coalesce(string_agg(privilege, '; ' order by rank), 'nothing'))
  from held
 group by relname, role
having role <> 'public' or count(privilege) > 0
 union all
select format('%s: no policies', relname)
  from relations
 where relkind <> 'v'
   and not relrowsecurity
 union all
select format('%s: policy %s to %s for %s', tablename, policyname, array_to_string(roles, ', '), lower(cmd))
  from pg_policies
 where schemaname = 'public'
   and roles <> '{payonce_worker}'
 union all
select format('%s(): executed by %s', proname, (
         select coalesce(string_agg(role, ', ' order by role), 'its owner')
           from unnest(array['payonce_api', 'payonce_worker', 'payonce_console', 'public']) as role
          where has_function_privilege(role, pg_proc.oid, 'EXECUTE')))
  from pg_proc
 where pronamespace = 'public'::regnamespace
 union all
-- A function that runs as its owner fixes where it looks for names.
select format('%s(): runs as its owner with the names of its caller', proname)
  from pg_proc
 where pronamespace = 'public'::regnamespace
   and prosecdef
   and not 'search_path=pg_catalog, pg_temp' = any(coalesce(proconfig, '{}'))
 union all
-- Only inserts move a sequence.
select format('%s: used by %s', relname, role)
  from pg_class
 cross join unnest(array['payonce_api', 'payonce_worker', 'payonce_console', 'public']) as role
 where relnamespace = 'public'::regnamespace
   and case when relkind = 'S' then has_sequence_privilege(role, pg_class.oid, 'USAGE, SELECT, UPDATE') end
 union all
select format('%s may create in %s', role, nspname)
  from unnest(array['payonce_api', 'payonce_worker', 'payonce_console', 'public']) as role
 cross join pg_namespace
 where nspname not like 'pg\_%'
   and has_schema_privilege(role, pg_namespace.oid, 'CREATE')
 union all
select format('%s may create schemas', role)
  from unnest(array['payonce_api', 'payonce_worker', 'payonce_console', 'public']) as role
 where has_database_privilege(role, current_database(), 'CREATE')
 union all
select format('%s is more than a role', rolname)
  from pg_roles
 where rolname in ('payonce_api', 'payonce_worker', 'payonce_console')
   and (rolsuper or rolcreaterole or rolcreatedb or rolcanlogin or rolreplication or rolbypassrls)
 union all
select format('%s includes %s', member::regrole, roleid::regrole)
  from pg_auth_members
 where member::regrole::text in ('payonce_api', 'payonce_worker', 'payonce_console')
