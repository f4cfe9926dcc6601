package migrations_test

import (
	"context"
	_ "embed"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

const analyze = "analyze"

// known is what the planner may believe of the tables when it makes a plan. Plans are
// kept: what is planned here is what runs later, when the tables are large.
var known = map[string][]string{
	"nothing, of empty tables":   nil,
	"that tables are empty":      {analyze},
	"nothing, of a row each":     {rows(1, 1)},
	"of a row each":              {rows(1, 1), analyze},
	"nothing, of small tables":   {rows(1, 30)},
	"of small tables":            {rows(1, 30), analyze},
	"of small, vacuumed tables":  {rows(1, 30), "vacuum", analyze},
	"nothing, of large tables":   {rows(1, manyRows)},
	"of large tables":            {rows(1, manyRows), analyze},
	"of large, vacuumed tables":  {rows(1, manyRows), "vacuum", analyze},
	"of when tables were small":  {rows(1, 30), analyze, rows(31, manyRows)},
	"of when all was of one key": {rows(1, 1), oneKey, analyze, rows(2, manyRows)},
	"that all was deleted":       {rows(1, manyRows), deleted},
}

const manyRows = 2000

//go:embed testdata/rows.sql
var chargeRows string

// rows are charges, each with all that belongs to one.
func rows(first, last int) string {
	return strings.NewReplacer("$first", strconv.Itoa(first), "$last", strconv.Itoa(last)).Replace(chargeRows)
}

const (
	oneKey = `
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status)
select 'r', 'one' || status || n, 'ch_1', 't', '', '{}', '', status
  from generate_series(1, 500) n,
       unnest(array['dead', 'pending']) status`

	// As vacuum leaves tables whose rows are gone and whose pages are not.
	deleted = `
update pg_class
   set reltuples = 0,
       relpages = pg_relation_size(oid) / current_setting('block_size')::int
 where relkind in ('r', 'i')
   and relnamespace = 'public'::regnamespace`
)

// lookup is a statement that must cost what it looks for, however large the tables are: an entry of
// testdata/lookups.txt.
type lookup struct {
	in, words, args, ways string
	api                   bool
}

func lookups(t *testing.T) (all []lookup) {
	t.Helper()
	for line := range strings.Lines(read(t, "lookups.txt")) {
		line = strings.TrimSuffix(line, "\n")
		below, indented := strings.CutPrefix(line, "  ")
		switch {
		case line == "", line[0] == '#':
		case !indented:
			in, words, _ := strings.Cut(line, ": ")
			in, api := strings.CutSuffix(in, " api")
			all = append(all, lookup{in: in, api: api, words: strings.ReplaceAll(words, `\n`, "\n")})
		case below[0] == '(':
			all[len(all)-1].args = below[1 : len(below)-1]
		default:
			all[len(all)-1].ways = below
		}
	}
	return all
}

// small are tables that may be read whole.
var small = regexp.MustCompile(`\bon (followers|restore_mark|audit_progress|inbox_holders|outbox_topics)\b`)

// TestPlans_doNotDependOnStatistics: a plan that depends on when a table was analyzed is wrong some
// day. A policy filters what the plan of the statement finds, and changes no plan. Each statement of
// the inbox and the outbox is a lookup, but for those that read no table.
func TestPlans_doNotDependOnStatistics(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	all, covered := statements(t), map[string]bool{}
	for _, l := range lookups(t) {
		covered[l.find(t, all)] = true
	}
	reading := regexp.MustCompile(`\b(from|update) (inbox|outbox)`)
	for at, sql := range all {
		if in := path.Dir(at); (in == "../inbox" || in == "../outbox") && !covered[complete(sql)] && reading.MatchString(sql) {
			t.Errorf("%s is planned by no lookup:%s", at, sql)
		}
	}
	for name, prepared := range known {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			for _, sql := range prepared {
				testdb.Exec(t, db.Pool(), sql, pgx.QueryExecModeSimpleProtocol)
			}
			api := testdb.As(t, db, postgres.RoleAPI)
			for _, l := range lookups(t) {
				sql := l.find(t, all)
				for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
					plan := l.plan(t, db, mode, sql)
					for _, way := range ways(plan) {
						if !slices.Contains(strings.Split(l.ways, ", "), way) {
							t.Errorf("%s, %q, %s: it goes by %q, want %s:\n%s", l.in, l.words, mode, way, l.ways, plan)
							break
						}
					}
					if !l.api {
						continue
					}
					if diff := cmp.Diff(shape(plan), shape(l.plan(t, api, mode, sql))); diff != "" {
						t.Errorf("%s, %q, %s: the plans differ (-owner +api):\n%s", l.in, l.words, mode, diff)
					}
				}
			}
		})
	}
}

func (l lookup) find(t *testing.T, all map[string]string) (sql string) {
	t.Helper()
	for at, text := range all {
		if path.Dir(at) == "../"+l.in && strings.Contains(text, l.words) && (sql == "" || len(text) < len(sql)) {
			sql = text
		}
	}
	if sql == "" {
		t.Fatalf("%s has no statement with %q", l.in, l.words)
	}
	return complete(sql)
}

// plan explains a statement under the settings of a program's sessions.
func (l lookup) plan(t *testing.T, db *postgres.DB, mode, sql string) string {
	t.Helper()
	script := []string{"set payonce.merchant = 'm1'", "set plan_cache_mode = " + mode}
	script = append(script, "prepare looked as "+sql)
	conn, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	defer func() {
		_, _ = conn.Exec(context.WithoutCancel(t.Context()), "discard all")
		conn.Release()
	}()
	if _, err := conn.Exec(t.Context(), strings.Join(script, "; "), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s, %q: %v", l.in, l.words, err)
	}
	args := l.args
	if args == "" {
		var types []string
		err := conn.QueryRow(t.Context(), `select parameter_types::text[] from pg_prepared_statements where name = 'looked'`, pgx.QueryExecModeSimpleProtocol).Scan(&types)
		testdb.Must(t, err)
		for i, name := range types {
			types[i] = sample(t, name)
		}
		args = strings.Join(types, ", ")
	}
	call := "explain (costs off) execute looked"
	if args != "" {
		call += "(" + args + ")"
	}
	rows, _ := conn.Query(t.Context(), call, pgx.QueryExecModeSimpleProtocol) // its error comes with the rows
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s, %q: %v: %s", l.in, l.words, err, sql)
	}
	return strings.Join(lines, "\n")
}

// sample is a value of a type. Several rows of each table have it, as far as one may.
func sample(t *testing.T, name string) string {
	t.Helper()
	value, known := map[string]string{
		"text": "'r'", "bigint": "7", "integer": "7", "boolean": "false", "interval": "'1 s'", "bytea": "''", "jsonb": "'{}'",
		"timestamp with time zone": "now()", "timestamptz": "now()",
	}[strings.TrimSuffix(name, "[]")]
	if !known {
		t.Fatalf("say here a value of the type %s", name)
	}
	if strings.HasSuffix(name, "[]") {
		return "array[" + value + "]::" + name
	}
	return value
}

// shape is how a plan goes through tables and indexes, without what it reads there. A
// policy on what is known before the first row is a Result around a scan.
func shape(plan string) []string {
	return regexp.MustCompile(`(?m)\w[\w ]* Scan\b.*|Nested Loop.*|(?:Hash|Merge) .*Join.*|Sort$|Limit$`).FindAllString(plan, -1)
}

// ways are how a plan gets at rows of tables that are not small: by which index,
// entered by which columns, or "all of" a table.
func ways(plan string) (found []string) {
	node := regexp.MustCompile(`(?:Index|Seq)(?: Only)? Scan(?: Backward)?(?: using (\w+))? on (\w+)`)
	column := regexp.MustCompile(`\((?:ROW\()?(["a-z_]+)(?:, ["a-z_]+)*\)? (?:=|<|<=|>|>=) `)
	lines := strings.Split(plan, "\n")
	for i, line := range lines {
		scan := node.FindStringSubmatch(line)
		if scan == nil || small.MatchString(line) {
			continue
		}
		way := "all of " + scan[2]
		if strings.Contains(line, "Index") {
			way = scan[1]
			if way == "" {
				way = scan[2] // Bitmap Index Scan on an index
			}
			for _, below := range lines[i+1:] {
				if strings.Contains(below, "->") {
					break
				}
				if _, condition, entered := strings.Cut(below, "Index Cond: "); entered {
					for _, of := range column.FindAllStringSubmatch("("+condition, -1) {
						if name := strings.Trim(of[1], `"`); !strings.HasSuffix(way, name) {
							way += " " + name
						}
					}
				}
			}
		}
		found = append(found, way)
	}
	return found
}
