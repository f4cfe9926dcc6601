package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// Effective privileges, so that what PUBLIC or another role hands on is among
// them. All columns are written as the table.
const selectGrants = `
with verbs(verb, rank) as (
  values ('SELECT', 1), ('INSERT', 2), ('UPDATE', 3), ('DELETE', 4), ('TRUNCATE', 5), ('REFERENCES', 6), ('TRIGGER', 7)
), held as (
  select c.relname,
         v.rank,
         case
           when has_table_privilege($1, c.oid, v.verb) then lower(v.verb)
           else (select lower(v.verb) || ' (' || string_agg(a.attname, ', ' order by a.attnum) || ')'
                   from pg_attribute a
                  where a.attrelid = c.oid
                    and a.attnum > 0
                    and not a.attisdropped
                    and case
                          when v.verb in ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
                          then has_column_privilege($1, c.oid, a.attnum, v.verb)
                        end)
         end as privilege
    from pg_class c
   cross join verbs v
   where c.relnamespace = 'public'::regnamespace
     and c.relkind in ('r', 'p', 'v', 'm', 'f')
)
select relname::text,
       coalesce(string_agg(privilege, '; ' order by rank), '')
  from held
 group by relname`

// TestGrants holds the privileges of the roles to the decision about each table,
// in both directions: a new table needs one, if only that nobody gets anything.
func TestGrants(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	for _, role := range []postgres.Role{postgres.RoleAPI, postgres.RoleWorker} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			want := map[string]string{}
			for table, grant := range grants() {
				want[table] = grant.of(role)
			}
			rows, err := db.Query(t.Context(), selectGrants, string(role))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			var table, privileges string
			if _, err := pgx.ForEachRow(rows, []any{&table, &privileges}, func() error { got[table] = privileges; return nil }); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("what %s may do (-decided +granted):\n%s", role, diff)
			}
		})
	}

	for name, none := range map[string]string{
		"nobody but the owner changes the schema": `
select rolname || ' may create in ' || nspname
  from pg_roles
 cross join pg_namespace
 where rolname like 'payonce\_%'
   and nspname not like 'pg\_%'
   and has_schema_privilege(rolname, pg_namespace.oid, 'CREATE')
 union all
select rolname || ' may create schemas'
  from pg_roles
 where rolname in ('payonce_api', 'payonce_worker')
   and has_database_privilege(rolname, current_database(), 'CREATE')`,
		"no sequence is read or moved but by the inserts": `
select rolname || ' may use ' || relname
  from pg_roles
 cross join pg_class
 where rolname in ('payonce_api', 'payonce_worker')
   and relkind = 'S'
   and relnamespace = 'public'::regnamespace
   and has_sequence_privilege(rolname, pg_class.oid, 'USAGE, SELECT, UPDATE')`,
		"the roles are no more than roles": `
select rolname::text
  from pg_roles
 where rolname in ('payonce_api', 'payonce_worker')
   and (rolsuper or rolcreaterole or rolcreatedb or rolcanlogin or rolreplication or rolbypassrls)
 union all
select roleid::regrole || ' includes ' || member::regrole
  from pg_auth_members
 where member::regrole::text in ('payonce_api', 'payonce_worker')`,
		"every function that runs as its owner says where it looks for names": `
select proname::text
  from pg_proc
 where pronamespace = 'public'::regnamespace
   and prosecdef
   and not 'search_path=pg_catalog, pg_temp' = any(coalesce(proconfig, '{}'))`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := texts(t, db, none); len(got) > 0 {
				t.Errorf("%q", got)
			}
		})
	}

	t.Run("functions are executed by those who need them", func(t *testing.T) {
		t.Parallel()
		got := texts(t, db, `
select format('%s: %s', proname, (
         select coalesce(string_agg(rolname, ', ' order by rolname), 'nobody')
           from pg_roles
          where rolname in ('payonce_api', 'payonce_worker')
            and has_function_privilege(rolname, pg_proc.oid, 'EXECUTE')))
  from pg_proc
 where pronamespace = 'public'::regnamespace
 order by 1`)
		if diff := cmp.Diff(functions(), got); diff != "" {
			t.Errorf("functions (-decided +granted):\n%s", diff)
		}
	})
}

// TestRefusals tries what is not granted: each verb on each table, and on each
// column where only some are.
func TestRefusals(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	columns := map[string][]string{}
	for _, line := range texts(t, db, `
select table_name || ' ' || column_name
  from information_schema.columns
 where table_schema = 'public'
 order by table_name, ordinal_position`) {
		table, column, _ := strings.Cut(line, " ")
		columns[table] = append(columns[table], column)
	}
	views := texts(t, db, `select viewname::text from pg_views where schemaname = 'public'`)
	for _, role := range []postgres.Role{postgres.RoleAPI, postgres.RoleWorker} {
		acting := pgtest.As(t, db, role)
		for table, grant := range grants() {
			t.Run(string(role)+"/"+table, func(t *testing.T) {
				t.Parallel()
				refused := 0
				for _, statement := range ungranted(table, grant.of(role), columns[table], slices.Contains(views, table)) {
					if _, err := acting.Pool().Exec(t.Context(), statement); sqlState(err) != "42501" {
						t.Errorf("%s: %v, want 42501", statement, err)
					}
					refused++
				}
				t.Logf("%d statements refused", refused)
			})
		}
	}
}

// ungranted are statements that need more than the privileges.
func ungranted(table, privileges string, columns []string, view bool) []string {
	granted := map[string]string{}
	for privilege := range strings.SplitSeq(privileges, "; ") {
		verb, some, _ := strings.Cut(privilege, " ")
		granted[verb] = some
	}
	name := func(s string) string { return pgx.Identifier{s}.Sanitize() }
	perColumn := map[string]string{
		"select": "select %[2]s from %[1]s",
		"insert": "insert into %[1]s (%[2]s) values (default)",
		"update": "update %[1]s set %[2]s = default where false",
	}
	var statements []string
	for verb, form := range perColumn {
		some, has := granted[verb]
		if has && some == "" || view && verb != "select" {
			continue
		}
		allowed := strings.Split(strings.Trim(some, "()"), ", ")
		for _, column := range columns {
			if !slices.Contains(allowed, column) {
				statements = append(statements, fmt.Sprintf(form, name(table), name(column)))
			}
		}
	}
	if view {
		return statements
	}
	for verb, form := range map[string]string{"delete": "delete from %s where false", "truncate": "truncate %s"} {
		if _, has := granted[verb]; !has {
			statements = append(statements, fmt.Sprintf(form, name(table)))
		}
	}
	return append(statements,
		"alter table "+name(table)+" add column more int",
		"create index on "+name(table)+" ("+name(columns[0])+")")
}

func texts(t *testing.T, db postgres.Querier, sql string) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func sqlState(err error) string {
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) {
		return ""
	}
	return refusal.Code
}
