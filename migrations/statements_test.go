package migrations_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

// TestEveryStatementPrepares finds the SQL of every package in its source and
// has the migrated database prepare it, so that a statement and the schema
// cannot drift apart. The sandbox has a schema of its own, and its own tests; so has
// the benchmark, which is another module.
func TestEveryStatementPrepares(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	conn := connect(t, testdb.URL(t))
	found := map[string]int{}
	for at, sql := range statements(t) {
		file, _, _ := strings.Cut(at, ":")
		found[filepath.ToSlash(filepath.Dir(file))]++
		if _, err := conn.Prepare(t.Context(), "", complete(sql)); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		if !named.MatchString(sql) && !proofs.MatchString(at) {
			t.Errorf("%s: its first line is no name, such as -- inbox.claim", at)
		}
	}
	for _, room := range []string{"ledger", "outbox", "inbox", "idempotency", "fulfillment", "internal/merchants", "internal/audit"} {
		if found["../"+room] == 0 {
			t.Errorf("no statement found in %s: does this test still know how they are written?", room)
		}
	}
	t.Logf("statements prepared: %v", found)
}

var (
	// named is how a statement begins: its name is in the plans of crash points, in traces and in
	// pg_stat_statements.
	named = regexp.MustCompile(`^\n?-- [a-z]+\.\w+\n`)
	// proofs are folders whose statements need no name.
	proofs = regexp.MustCompile(`^../(cmd/payonce|internal/(await|robustness|testdb|postgres/local))/`)
)

// statement is how the house writes SQL: on lines of its own, in lower case.
func statement() *regexp.Regexp {
	return regexp.MustCompile(`^\n(-- \S+\n)?(select|insert|update|delete|with)\b`)
}

// joined is how a statement begins that is a sum of texts.
func joined() *regexp.Regexp { return regexp.MustCompile(`^\n?(-- \S+\n)?(select|update|with)\b`) }

// complete fills what a package adds when it runs: a number after a limit, a
// query between parentheses.
func complete(sql string) string {
	if strings.HasSuffix(sql, " limit ") {
		sql += "1"
	}
	return strings.ReplaceAll(sql, "(%s", "(select null::text")
}

// sources are the files of the module that are no tests, by where they lie.
func sources(t *testing.T, positions *token.FileSet) map[string]*ast.File {
	t.Helper()
	found := map[string]*ast.File{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if entry.Name() == "sandbox" || entry.Name() == "testdata" || len(entry.Name()) > 2 && entry.Name()[0] == '.' {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != ".." {
				return fs.SkipDir // a module of its own
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			found[path], err = parser.ParseFile(positions, path, nil, parser.SkipObjectResolution)
		}
		return err
	})
	testdb.Must(t, err)
	return found
}

// constants are a package's constants, by their names.
type constants map[string]ast.Expr

func (c constants) add(file *ast.File) {
	for _, d := range file.Decls {
		if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.CONST {
			for _, s := range d.Specs {
				if s, ok := s.(*ast.ValueSpec); ok && len(s.Values) == 1 {
					c[s.Names[0].Name] = s.Values[0]
				}
			}
		}
	}
}

// of is an expression of literals and constants, as the compiler joins them.
func (c constants) of(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, e.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		left, known := c.of(e.X)
		right, too := c.of(e.Y)
		return left + right, known && too
	case *ast.Ident:
		if value := c[e.Name]; value != nil {
			return c.of(value)
		}
	}
	return "", false
}

// parts are the constants that stand in sums alone: they are parts of statements and none
// themselves.
func parts(files map[string]*ast.File) map[string]bool {
	uses, sums := map[string]int{}, map[string]int{} // by folder and name; the declaration is a use
	for path, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				uses[filepath.Dir(path)+" "+n.Name]++
			case *ast.BinaryExpr:
				for _, e := range []ast.Expr{n.X, n.Y} {
					if name, ok := e.(*ast.Ident); ok && n.Op == token.ADD {
						sums[filepath.Dir(path)+" "+name.Name]++
					}
				}
			}
			return true
		})
	}
	found := map[string]bool{}
	for name, n := range sums {
		found[name] = uses[name] == n+1
	}
	return found
}

// statements are the texts that hold SQL, by where they stand.
func statements(t *testing.T) map[string]string {
	t.Helper()
	whole, sum := statement(), joined()
	positions := token.NewFileSet()
	files := sources(t, positions)
	packages := map[string]constants{}
	for path, file := range files {
		folder := filepath.Dir(path)
		if packages[folder] == nil {
			packages[folder] = constants{}
		}
		packages[folder].add(file)
	}
	found, partial := map[string]string{}, parts(files)
	for path, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			begins := whole
			switch n := n.(type) {
			case *ast.ValueSpec:
				return !partial[filepath.Dir(path)+" "+n.Names[0].Name]
			case *ast.BasicLit:
			case *ast.BinaryExpr:
				begins = sum
			default:
				return true
			}
			e, _ := n.(ast.Expr)
			if text, ok := packages[filepath.Dir(path)].of(e); ok && begins.MatchString(text) {
				found[positions.Position(e.Pos()).String()] = text
				return false
			}
			return true
		})
	}
	return found
}
