package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

const analyze = "analyze"

// known is what the planner may believe of the tables when it makes a plan. Plans are
// kept: what is planned here is what runs later, when the tables are large.
func known(t *testing.T) map[string][]string {
	t.Helper()
	charges := read(t, "rows.sql") // each with all that belongs to one
	rows := func(first, last int) string {
		return strings.NewReplacer("$first", strconv.Itoa(first), "$last", strconv.Itoa(last)).Replace(charges)
	}
	return map[string][]string{
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
}

const manyRows = 2000

// atRest keeps the server from an analysis of its own, whenever a slow machine comes to it.
const atRest = `
do $$
begin
  execute (select string_agg(format('alter table %s set (autovacuum_enabled = off)', oid::regclass), '; ')
             from pg_class
            where relkind = 'r'
              and relnamespace = 'public'::regnamespace);
end
$$`

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
			all[len(all)-1].args = strings.TrimPrefix(below, "()")
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
	testrun.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	all, covered := statements(t), map[string]bool{}
	for _, l := range lookups(t) {
		covered[l.find(t, all)] = true
	}
	theirs, reading := regexp.MustCompile(`^\.\./(inbox|outbox)/`), regexp.MustCompile(`\b(from|update) (inbox|outbox)`)
	for at, sql := range all {
		if theirs.MatchString(at) && !covered[sql] && reading.MatchString(sql) {
			t.Errorf("%s is planned by no lookup:%s", at, sql)
		}
	}
	for name, prepared := range known(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			for _, sql := range append([]string{atRest}, prepared...) {
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
					testrun.Same(t, fmt.Sprintf("%s, %q, %s: the plans differ", l.in, l.words, mode), shape(plan), shape(l.plan(t, api, mode, sql)))
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
	return sql
}

// plan explains a statement under the settings of a program's sessions.
func (l lookup) plan(t *testing.T, db *postgres.DB, mode, sql string) string {
	t.Helper()
	script := []string{"set payonce.merchant = 'm1'", "set plan_cache_mode = " + mode, "prepare looked as " + sql}
	conn, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	defer func() {
		_, _ = conn.Exec(context.WithoutCancel(t.Context()), "discard all")
		conn.Release()
	}()
	if _, err := conn.Exec(t.Context(), strings.Join(script, "; "), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s, %q: %v", l.in, l.words, err)
	}
	rows, _ := conn.Query(t.Context(), "explain (costs off) execute looked"+l.args, pgx.QueryExecModeSimpleProtocol) // its error comes with the rows
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s, %q: %v: %s", l.in, l.words, err, sql)
	}
	return strings.Join(lines, "\n")
}

// shape is how a plan goes through tables and indexes, without what it reads there. A
// policy on what is known before the first row is a Result around a scan, or the filter of a Subquery Scan.
func shape(plan string) []string {
	nodes := regexp.MustCompile(`(?m)\w[\w ]* Scan\b.*|Nested Loop.*|(?:Hash|Merge) .*Join.*|Sort$|Limit$`).FindAllString(plan, -1)
	return slices.DeleteFunc(nodes, func(node string) bool { return strings.HasPrefix(node, "Subquery Scan ") })
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

// TestEveryStatementPrepares finds the SQL of every package in its source and
// has the migrated database prepare it, so that a statement and the schema
// cannot drift apart. The sandbox has a schema of its own, and its own tests; so has
// the benchmark, which is another module.
func TestEveryStatementPrepares(t *testing.T) {
	testrun.Long(t, "it takes a large part of the time")
	t.Parallel()
	conn := testdb.Session(t, testdb.URL(t))
	all := statements(t)
	for at, sql := range all {
		sql = strings.Replace(sql, "(%s", "(select null::text", 1) // a query of the audit
		if _, err := conn.Prepare(t.Context(), "", sql); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		if !named.MatchString(sql) && !proofs.MatchString(at) {
			t.Errorf("%s: its first line is no name, such as -- inbox.claim", at)
		}
	}
	if len(all) < 80 {
		t.Errorf("there are only %d statements: does this test still know how they are written?", len(all))
	}
}

var (
	// named is how a statement begins: its name is in the plans of crash points, in traces and in
	// pg_stat_statements.
	named = regexp.MustCompile(`^\n?-- [a-z]+\.\w+\n`)
	// proofs are folders whose statements need no name.
	proofs = regexp.MustCompile(`^../internal/(robustness|testdb)/`)
	// whole is how the house writes SQL: on lines of its own, in lower case. joined is how a statement
	// begins that is a sum of texts.
	whole  = regexp.MustCompile(`^\n(-- \S+\n)?(select|insert|update|delete|with)\b`)
	joined = regexp.MustCompile(`^\n?(-- \S+\n)?(select|update|with)\b`)
)

// sources are the files of each package of the module that are no tests.
func sources(positions *token.FileSet) (map[string][]*ast.File, error) {
	found := map[string][]*ast.File{}
	return found, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			isModule := err == nil && path != ".." // of its own
			if isModule || entry.Name() == "sandbox" || entry.Name() == "testdata" || len(entry.Name()) > 2 && entry.Name()[0] == '.' {
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution)
			found[filepath.Dir(path)] = append(found[filepath.Dir(path)], file)
			return err
		}
		return nil
	})
}

// statements are the constant texts that hold SQL, by where they stand. One that is a part of another
// is none itself.
func statements(t *testing.T) map[string]string {
	t.Helper()
	found, err := readStatements()
	testdb.Must(t, err)
	return found
}

var readStatements = sync.OnceValues(func() (map[string]string, error) {
	positions := token.NewFileSet()
	packages, err := sources(positions)
	found := map[string]string{}
	for folder, files := range packages {
		info := types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
		checker := types.Config{Importer: noImports{}, Error: func(error) {}} // texts are constants of their own package
		_, _ = checker.Check(folder, positions, files, &info)
		for e, typed := range info.Types {
			_, isSum := e.(*ast.BinaryExpr)
			_, isLiteral := e.(*ast.BasicLit)
			if typed.Value == nil || typed.Value.Kind() != constant.String || !isSum && !isLiteral {
				continue
			}
			at, text := positions.Position(e.Pos()).String(), constant.StringVal(typed.Value)
			if (whole.MatchString(text) || isSum && joined.MatchString(text)) && len(text) > len(found[at]) {
				found[at] = text
			}
		}
	}
	texts := slices.Collect(maps.Values(found))
	maps.DeleteFunc(found, func(_, text string) bool {
		return slices.ContainsFunc(texts, func(other string) bool { return len(other) > len(text) && strings.Contains(other, text) })
	})
	return found, err
})

// noImports leaves what a file takes of other packages unknown.
type noImports struct{}

func (noImports) Import(at string) (*types.Package, error) {
	return nil, errors.New("not read: " + at)
}
