package migrations_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/migrations"
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
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := pgtest.Open(t)
	for _, found := range texts(t, db, selectCollated) {
		t.Errorf(`%s, want "C"`, found)
	}
	t.Run("the catalogue shows a column, an expression and a predicate that forgot it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		if _, err := db.Pool().Exec(t.Context(), `
create table forgotten (
  a text,
  b varchar(9),
  c jsonb,
  d text,
  e text check (e <> ''),
  f text[],
  g uuid primary key,
  h text
);
create unique index forgotten_column on forgotten (a, b, f);
create unique index forgotten_expression on forgotten ((c ->> 'x'));
create index forgotten_predicate on forgotten (g) where d = 'x'`); err != nil {
			t.Fatal(err)
		}
		found := strings.Join(texts(t, db, selectCollated), "\n")
		for _, want := range []string{
			"column forgotten.a, in forgotten_column,", "column forgotten.b, in forgotten_column,", "column forgotten.f, in forgotten_column,",
			"key 1 of index forgotten_expression ", "column forgotten.d, in forgotten_predicate,", "column forgotten.e, in forgotten_e_check,",
		} {
			if !strings.Contains(found, want) {
				t.Errorf("it does not name %q:\n%s", want, found)
			}
		}
		if n := strings.Count(found, "\n") + 1; n != 9 { // three columns and their three keys, and three more
			t.Errorf("it finds %d places, want 9:\n%s", n, found)
		}
	})
}

// TestGuards_surviveAChangedCollation fills a database whose default collation is ICU's and
// then changes the comparator under its indexes, as another image of the server does.
func TestGuards_surviveAChangedCollation(t *testing.T) {
	pgtest.Long(t, "it makes many keys")
	t.Parallel()
	admin := connect(t, pgtest.Empty(t))
	var icu bool
	if err := admin.QueryRow(t.Context(), `select exists (select from pg_collation where collprovider = 'i')`).Scan(&icu); err != nil {
		t.Fatal(err)
	}
	if !icu {
		t.Skip("the server was built without ICU")
	}
	address := withICU(t, admin)
	if err := migrations.Up(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	const n = 2000
	guards := map[string]string{
		"idempotency_keys": `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
select 'acme', kind, key, '', 202, '', '', now()
  from %s
    on conflict do nothing`,
		"inbox": `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
select kind, key, key, 't', '', '{}', ''
  from %s
    on conflict do nothing`,
		"ledger_events by the provider's id": `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), gen_random_uuid()::text, 1, 'payment.captured.v1', 1, 'acme', jsonb_build_object('provider', kind, 'payment_intent', key), '{}', now()
  from %s
    on conflict do nothing`,
	}
	kinds := map[string]string{
		"uuid":       `md5(i::text)::uuid::text`,
		"order-N":    `'order-' || i`,
		"Order_N/x":  `case i % 4 when 0 then 'order-' when 1 then 'Order_' when 2 then 'ORDER.' else 'order:' end || i`,
		"base64":     `translate(encode(sha256(i::text::bytea), 'base64'), E'\n', '')`,
		"cart_/Cart": `case i % 3 when 0 then 'cart_' when 1 then 'Cart-' else 'cart' end || md5(i::text)`,
	}
	insert := func(conn *pgx.Conn, into, name, kind string) int64 {
		t.Helper()
		keys := fmt.Sprintf("(select '%s' as kind, %s as key from generate_series(1, %d) i) keys", name, kind, n)
		tag, err := conn.Exec(t.Context(), fmt.Sprintf(into, keys))
		if err != nil {
			t.Fatal(err)
		}
		return tag.RowsAffected()
	}
	before := connect(t, address)
	for table, into := range guards {
		for name, kind := range kinds {
			if stored := insert(before, into, name, kind); stored != n {
				t.Fatalf("%s: %d of %d keys %s were stored", table, stored, n, name)
			}
		}
	}
	if err := before.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	changeCollation(t, admin, address)
	after := connect(t, address)
	for table, into := range guards {
		for name, kind := range kinds {
			if twice := insert(after, into, name, kind); twice != 0 {
				t.Errorf("%s: %d of %d keys %s were accepted a second time", table, twice, n, name)
			}
		}
	}
}

// withICU makes a database whose default collation is ICU's.
func withICU(t *testing.T, admin *pgx.Conn) (address string) {
	t.Helper()
	name := admin.Config().Database + "_icu"
	if _, err := admin.Exec(t.Context(), `create database `+name+` template template0 encoding 'UTF8' locale 'C' locale_provider icu icu_locale 'en-US'`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), `drop database `+name+` with (force)`); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(admin.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// changeCollation makes the byte order the default one of a database, under its indexes.
func changeCollation(t *testing.T, admin *pgx.Conn, address string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	column := "daticulocale" // of 15 and 16
	if _, err := admin.Exec(t.Context(), `select daticulocale from pg_database limit 0`); err != nil {
		column = "datlocale"
	}
	if _, err := admin.Exec(t.Context(), `
update pg_database
   set datlocprovider = 'c', datcollversion = null, `+column+` = null
 where datname = $1`, strings.TrimPrefix(u.Path, "/")); err != nil {
		t.Fatal(err)
	}
}
