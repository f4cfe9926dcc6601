package migrations_test

import (
	"testing"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestSchema_guardsCompareBytes: the order of "C" is that of the bytes and never changes.
// The database's default collation is libc's or ICU's, and changes with their version: then
// a unique index searches in the wrong place and accepts a key a second time.
func TestSchema_guardsCompareBytes(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for _, found := range testdb.All[string](t, db, read(t, "collated.sql")) {
		t.Errorf(`%s, want "C"`, found)
	}
	// The query finds a column, an expression and a predicate without a collation.
	testdb.Exec(t, db.Pool(), `
create table forgotten (a text, b varchar(9), c jsonb, d text, e text check (e <> ''), f text[], g uuid primary key, h text);
create unique index forgotten_column on forgotten (a, b, f);
create unique index forgotten_expression on forgotten ((c ->> 'x'));
create index forgotten_predicate on forgotten (g) where d = 'x'`)
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
	testrun.Same(t, "of the table that forgot it", want, testdb.All[string](t, db, read(t, "collated.sql")))
}
