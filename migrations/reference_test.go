package migrations_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/reference"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/migrations"
)

// created matches a line of SQL that names what it creates.
var created = regexp.MustCompile(`^(?:add )?(?:(constraint)|create (?:unique )?(table|view|index|function)) (\w+)`)

// TestReference_tables writes a section for each package that owns tables. Tables, columns and
// constraints are those of the database. The comment above a constraint or an index in the SQL,
// which each must have, says why it is there.
func TestReference_tables(t *testing.T) {
	t.Parallel()
	db, comments := testdb.Reused(t), make(map[string]string)
	for _, m := range migrations.All() {
		found, _ := objects(m.SQL)
		maps.Copy(comments, found)
	}
	for _, m := range migrations.All() {
		var text strings.Builder
		text.WriteString(promise(t, m))
		_, order := objects(m.SQL)
		for _, o := range order {
			kind, name, _ := strings.Cut(o, " ")
			switch kind {
			case "table", "view":
				text.WriteString("### " + o + "\n\n" + relation(t, db, name, comments))
				for _, columns := range testdb.All[string](t, db, selectColumnsOfView, name) {
					text.WriteString("Columns: " + columns + ".\n\n")
				}
			case "function":
				for _, f := range testdb.All[[]string](t, db, selectFunction, name) {
					text.WriteString("### " + o + "\n\n" + reference.Code(f[0]) + ": " + f[1] + ".\n\n")
				}
			}
		}
		reference.Section(t, "tables.md", m.Name, text.String())
	}
}

// promise is the paragraph with which a package's SQL begins.
func promise(t *testing.T, m migrations.Migration) string {
	t.Helper()
	text, opens := strings.CutPrefix(m.SQL, "-- Promise: ")
	if !opens {
		t.Fatalf("the schema of %s does not open with its promise", m.Name)
	}
	text, _, _ = strings.Cut(text, "\n\n")
	text, _, _ = strings.Cut(text, "\n--\n")
	text = strings.ReplaceAll(text, "\n-- ", " ")
	return strings.ToUpper(text[:1]) + text[1:] + "\n\n"
}

// objects returns the comments above constraints and indexes, by name, and the kinds and
// names of all that the SQL creates, in order.
func objects(sql string) (comments map[string]string, order []string) {
	comments = make(map[string]string)
	var above []string
	for line := range strings.Lines(sql) {
		line = strings.TrimSpace(line)
		comment, isComment := strings.CutPrefix(line, "-- ")
		match := created.FindStringSubmatch(line)
		switch {
		case isComment:
			above = append(above, comment)
		case line == "":
			above = nil
		case match != nil:
			order = append(order, match[1]+match[2]+" "+match[3])
			if match[2] == "index" || match[1] != "" {
				comments[match[3]] = strings.Join(above, " ")
			}
			above = nil
		}
	}
	return comments, order
}

// casts are those that PostgreSQL shows in each expression.
var casts = regexp.MustCompile(`::(?:text|integer|timestamp with time zone)(?:\[\])?`)

const (
	selectComment = `select obj_description(to_regclass($1), 'pg_class')`

	selectColumns = `
select array[attname::text, col_description(attrelid, attnum)]
  from pg_attribute
 where attrelid = to_regclass($1)
   and attnum > 0
   and col_description(attrelid, attnum) is not null
 order by attnum`

	selectColumnsOfView = `
select string_agg(chr(96) || column_name || chr(96), ', ' order by ordinal_position)
  from information_schema.columns
  join information_schema.views using (table_schema, table_name)
 where table_name = $1
having count(*) > 0`

	// PostgreSQL 18 lists "not null" too, which the columns show.
	selectGuards = `
select array[conname::text, pg_get_constraintdef(oid, true)]
  from pg_constraint
 where conrelid = to_regclass($1)
   and contype <> 'n'
 union all
select array[c.relname::text, 'UNIQUE INDEX ' || substring(pg_get_indexdef(indexrelid, 0, true) from ' USING btree (.*)')]
  from pg_index
  join pg_class c
    on c.oid = indexrelid
 where indrelid = to_regclass($1)
   and indisunique
   and not exists (select from pg_constraint where conindid = indexrelid and contype in ('p', 'u', 'x'))`

	selectIndexes = `
select c.relname::text
  from pg_index
  join pg_class c
    on c.oid = indexrelid
 where indrelid = to_regclass($1)
   and not indisunique`

	selectFunction = `
select array[format('%s(%s) returns %s', proname, pg_get_function_arguments(oid), pg_get_function_result(oid)),
             coalesce(obj_description(oid, 'pg_proc'), '')]
  from pg_proc
 where pronamespace = 'public'::regnamespace
   and prorettype <> 'trigger'::regtype
   and proname = $1`
)

// relation describes a table or a view. comments say why there are its constraints and
// indexes.
func relation(t *testing.T, db groupcommit.Querier, name string, comments map[string]string) string {
	t.Helper()
	var text strings.Builder
	for _, comment := range testdb.All[*string](t, db, selectComment, name) {
		if comment != nil {
			text.WriteString(strings.ToUpper((*comment)[:1]) + (*comment)[1:] + ".\n\n")
		}
	}
	columns := testdb.All[[]string](t, db, selectColumns, name)
	for _, column := range columns {
		column[0] = reference.Code(column[0])
	}
	text.WriteString(reference.List(columns))
	guards := testdb.All[[]string](t, db, selectGuards, name)
	slices.SortFunc(guards, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	for i, guard := range guards {
		mustHaveComment(t, comments, name, guard[0])
		guards[i] = []string{reference.Code(guard[0]), reference.Code(casts.ReplaceAllString(guard[1], "")) + ".", comments[guard[0]]}
	}
	if len(guards) > 0 {
		text.WriteString("Constraints:\n\n" + reference.List(guards))
	}
	for _, index := range testdb.All[string](t, db, selectIndexes, name) {
		mustHaveComment(t, comments, name, index)
	}
	return text.String()
}

func mustHaveComment(t *testing.T, comments map[string]string, table, name string) {
	t.Helper()
	if comments[name] == "" {
		t.Errorf("table %s: no comment in the SQL says why it has %s", table, name)
	}
}
