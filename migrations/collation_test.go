package migrations_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/testdb"
)

// selectCollated finds every text column that an index or a constraint reads, in its key,
// its predicate or its expression, and every key of an index, with a collation other than
// "C". Types without a collation, such as uuid and bigint, have 0. goose's table is not ours.
const selectCollated = `
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
   and r.relname <> 'schema_migrations'
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
   and r.relname <> 'schema_migrations'
 cross join unnest(i.indcollation::oid[]) with ordinality as k(collation_oid, n)
  join pg_collation l
    on l.oid = k.collation_oid
 where l.collname <> 'C'
 order by 1`

// TestSchema_guardsCompareBytes: the order of "C" is that of the bytes and never changes.
// The database's default collation is libc's or ICU's, and changes with their version: then
// a unique index searches in the wrong place and accepts a key a second time.
func TestSchema_guardsCompareBytes(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for _, found := range texts(t, db, selectCollated) {
		t.Errorf(`%s, want "C"`, found)
	}
	// The query finds a column, an expression and a predicate without a collation.
	if _, err := db.Pool().Exec(t.Context(), `
create table forgotten (a text, b varchar(9), c jsonb, d text, e text check (e <> ''), f text[], g uuid primary key, h text);
create unique index forgotten_column on forgotten (a, b, f);
create unique index forgotten_expression on forgotten ((c ->> 'x'));
create index forgotten_predicate on forgotten (g) where d = 'x'`); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"column forgotten.a, in forgotten_column, has collation default",
		"column forgotten.b, in forgotten_column, has collation default",
		"column forgotten.d, in forgotten_predicate, has collation default",
		"column forgotten.e, in forgotten_e_check, has collation default",
		"column forgotten.f, in forgotten_column, has collation default",
		"key 1 of index forgotten_column has collation default",
		"key 1 of index forgotten_expression has collation default",
		"key 2 of index forgotten_column has collation default",
		"key 3 of index forgotten_column has collation default",
	}
	if diff := cmp.Diff(want, texts(t, db, selectCollated)); diff != "" {
		t.Errorf("of the table that forgot it (-want +found):\n%s", diff)
	}
}
