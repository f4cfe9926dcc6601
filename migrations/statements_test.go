package migrations_test

import (
	"errors"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// statements are the constant texts that hold SQL, by where they stand. One that is a part of another
// is none itself.
func statements(t *testing.T) map[string]string {
	t.Helper()
	whole, sum := statement(), joined()
	positions := token.NewFileSet()
	packages := map[string][]*ast.File{}
	for path, file := range sources(t, positions) {
		packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], file)
	}
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
			if (whole.MatchString(text) || isSum && sum.MatchString(text)) && len(text) > len(found[at]) {
				found[at] = text
			}
		}
	}
	texts := slices.Collect(maps.Values(found))
	maps.DeleteFunc(found, func(_, text string) bool {
		return slices.ContainsFunc(texts, func(other string) bool { return len(other) > len(text) && strings.Contains(other, text) })
	})
	return found
}

// noImports leaves what a file takes of other packages unknown.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) { return nil, errors.New("not read: " + path) }
