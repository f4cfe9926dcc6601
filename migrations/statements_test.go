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

	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestEveryStatementPrepares finds the SQL of every package in its source and
// has the migrated database prepare it, so that a statement and the schema
// cannot drift apart. The sandbox has a schema of its own, and its own tests; so has
// the benchmark, which is another module.
func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.URL(t))
	found := map[string]int{}
	for at, sql := range statements(t) {
		file, _, _ := strings.Cut(at, ":")
		found[filepath.ToSlash(filepath.Dir(file))]++
		if _, err := conn.Prepare(t.Context(), "", complete(sql)); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	for _, room := range []string{"ledger", "outbox", "inbox", "idempotency", "fulfillment", "internal/merchants", "internal/audit", "internal/rediscache"} {
		if found["../"+room] == 0 {
			t.Errorf("no statement found in %s: does this test still know how they are written?", room)
		}
	}
	t.Logf("statements prepared: %v", found)
}

// statement is how the house writes SQL: on lines of its own, in lower case.
func statement() *regexp.Regexp {
	return regexp.MustCompile(`^\n(select|insert|update|delete|with)\b`)
}

// complete fills what a package adds when it runs: a number after a limit, a
// query between parentheses.
func complete(sql string) string {
	if strings.HasSuffix(sql, " limit ") {
		sql += "1"
	}
	return strings.ReplaceAll(sql, "(%s", "(select null::text")
}

// statements are the literals that hold SQL, by where they stand.
func statements(t *testing.T) map[string]string {
	t.Helper()
	sql := statement()
	positions := token.NewFileSet()
	found := map[string]string{}
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
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err == nil && sql.MatchString(text) {
				found[positions.Position(literal.Pos()).String()] = text
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
