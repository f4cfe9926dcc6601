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
	"sync"
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
	// whole is how the house writes SQL: on lines of its own, in lower case. joined is how a statement
	// begins that is a sum of texts.
	whole  = regexp.MustCompile(`^\n(-- \S+\n)?(select|insert|update|delete|with)\b`)
	joined = regexp.MustCompile(`^\n?(-- \S+\n)?(select|update|with)\b`)
)

// complete fills what a package adds when it runs: a number after a limit, a
// query between parentheses.
func complete(sql string) string {
	if strings.HasSuffix(sql, " limit ") {
		sql += "1"
	}
	return strings.ReplaceAll(sql, "(%s", "(select null::text")
}

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

func (noImports) Import(path string) (*types.Package, error) {
	return nil, errors.New("not read: " + path)
}
