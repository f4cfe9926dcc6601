-- Every text column that an index or a constraint reads, in its key, its predicate or its
-- expression, and every key of an index, with a collation other than "C". Types without a
-- collation, such as uuid and bigint, have 0. goose's table is not ours.
with guards as (
  select i.indexrelid::regclass::text as guard,
         i.indrelid as relation,
         d.refobjsubid as attnum
    from pg_index i
    join pg_depend d
      on d.classid = 'pg_class'::regclass
     and d.objid = i.indexrelid
     and d.refclassid = 'pg_class'::regclass
     and d.refobjid = i.indrelid
     and d.refobjsubid > 0
   union
  select c.conname,
         d.refobjid,
         d.refobjsubid
    from pg_constraint c
    join pg_depend d
      on d.classid = 'pg_constraint'::regclass
     and d.objid = c.oid
     and d.refclassid = 'pg_class'::regclass
     and d.refobjsubid > 0
   where c.contype <> 'n' -- PostgreSQL 18 lists "not null", which compares nothing
)
select format('column %s.%s, in %s, has collation %s', g.relation::regclass, a.attname, g.guard, l.collname)
  from guards g
  join pg_class r
    on r.oid = g.relation
   and r.relnamespace = 'public'::regnamespace
   and r.relname <> 'payonce_migrations'
  join pg_attribute a
    on a.attrelid = g.relation
   and a.attnum = g.attnum
  join pg_collation l
    on l.oid = a.attcollation
 where l.collname <> 'C'
 union
select format('key %s of index %s has collation %s', k.n, i.indexrelid::regclass, l.collname)
  from pg_index i
  join pg_class r
    on r.oid = i.indrelid
   and r.relnamespace = 'public'::regnamespace
   and r.relname <> 'payonce_migrations'
 cross join unnest(i.indcollation::oid[]) with ordinality as k(collation_oid, n)
  join pg_collation l
    on l.oid = k.collation_oid
 where l.collname <> 'C'
 order by 1
