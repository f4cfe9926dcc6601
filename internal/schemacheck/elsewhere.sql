-- A sentence for each schema that has some of the tables $1 and that the search_path of this
-- role does not search.
select format(case when has_schema_privilege(n.oid, 'usage') then 'the tables are in another schema than the search_path %1$s: %2$s has %3$s'
                   else 'the role %4$s has no right to use the schema %2$s, which has %3$s'
               end,
              current_setting('search_path'), n.nspname, string_agg(c.relname, ', ' order by c.relname), current_user)
  from pg_class c
  join pg_namespace n
    on n.oid = c.relnamespace
 where c.relname = any($1::text[])
   and c.relkind in ('r', 'p', 'v')
   and n.nspname <> all(current_schemas(true))
   and n.nspname !~ '^pg_(toast_)?temp_'
 group by n.oid, n.nspname
 order by n.nspname
