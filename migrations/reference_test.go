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

// TestReference_tables writes a section for each package that owns tables. Tables, columns,
// constraints and rights are those of the database. Why a constraint is there says the
// comment above it in the SQL, which each must have.
func TestReference_tables(t *testing.T) {
	t.Parallel()
	db, comments := testdb.Reused(t), make(map[string]string)
	for _, m := range migrations.All() {
		found, _ := objects(m.SQL)
		maps.Copy(comments, found)
	}
	rights := rightsOf(testdb.All[string](t, db, read(t, "rights.sql")))
	for _, m := range migrations.All() {
		var text strings.Builder
		text.WriteString(promise(t, m))
		_, order := objects(m.SQL)
		for _, o := range order {
			kind, name, _ := strings.Cut(o, " ")
			switch kind {
			case "table", "view":
				text.WriteString("### " + o + "\n\n" + relation(t, db, name, comments))
			case "function":
				text.WriteString("### " + o + "\n\n")
				for _, f := range testdb.All[[]string](t, db, selectFunction, name) {
					text.WriteString(reference.Code(f[0]) + ": " + f[1] + ".\n\n")
				}
			default:
				continue
			}
			for _, right := range rights[name] {
				text.WriteString("- " + right + "\n")
			}
			text.WriteString("\n")
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

// rightsOf are the lines of testdata/rights.sql by what they are about, without the names of
// columns.
func rightsOf(lines []string) map[string][]string {
	columns := regexp.MustCompile(` \([^)]*\)`)
	rights := make(map[string][]string)
	slices.Sort(lines)
	for _, line := range lines {
		if name, right, ok := strings.Cut(line, ": "); ok {
			name = strings.TrimSuffix(name, "()")
			rights[name] = append(rights[name], columns.ReplaceAllString(right, " (some columns)"))
		}
	}
	return rights
}

const (
	selectComment = `select obj_description(to_regclass($1), 'pg_class')`

	selectColumns = `
select array[attname::text,
             format_type(atttypid, atttypmod),
             case when attnotnull then '' else 'yes' end,
             case when attidentity <> '' then 'identity'
                  else case when attgenerated <> '' then 'generated: ' else '' end || coalesce(pg_get_expr(adbin, adrelid), '')
             end,
             coalesce(col_description(attrelid, attnum), '')]
  from pg_attribute a
  left join pg_attrdef d
    on d.adrelid = a.attrelid
   and d.adnum = a.attnum
 where attrelid = to_regclass($1)
   and attnum > 0
   and not attisdropped
 order by attnum`

	// PostgreSQL 18 lists "not null" too, which the columns show.
	selectGuards = `
select array[conname::text, pg_get_constraintdef(oid)]
  from pg_constraint
 where conrelid = to_regclass($1)
   and contype <> 'n'
 union all
select array[c.relname::text, 'UNIQUE INDEX ' || substring(pg_get_indexdef(indexrelid) from ' USING btree (.*)')]
  from pg_index
  join pg_class c
    on c.oid = indexrelid
 where indrelid = to_regclass($1)
   and indisunique
   and not exists (select from pg_constraint where conindid = indexrelid and contype in ('p', 'u', 'x'))`

	selectIndexes = `
select array[c.relname::text, substring(pg_get_indexdef(indexrelid) from ' USING btree (.*)')]
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
	for _, c := range columns {
		c[0], c[3] = reference.Code(c[0]), reference.Code(c[3])
	}
	text.WriteString(reference.Table([]string{"column", "type", "null", "default", "meaning"}, columns))
	for _, list := range []struct{ kind, sql string }{{"constraint", selectGuards}, {"index", selectIndexes}} {
		rows := testdb.All[[]string](t, db, list.sql, name)
		slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
		for i, row := range rows {
			if comments[row[0]] == "" {
				t.Errorf("table %s: no comment in the SQL says why it has %s", name, row[0])
			}
			rows[i] = []string{reference.Code(row[0]), reference.Code(row[1]), comments[row[0]]}
		}
		text.WriteString(reference.Table([]string{list.kind, "definition", "why"}, rows))
	}
	return text.String()
}
