package arch_test

import (
	"flag"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateAPI = flag.Bool("update-api", false, "write the exported API of the public packages to testdata/api/")

// TestAPI_isWrittenDown compares the exported API of each public package with its file in
// testdata/api/, and checks that another module can name everything in it.
func TestAPI_isWrittenDown(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "./...") {
		name := local(p.ImportPath)
		if !has(public, name) {
			continue
		}
		api := describe(t, readTree(t), name)
		file := filepath.Join("testdata", "api", name+".txt")
		if *updateAPI {
			must(t, os.WriteFile(file, []byte(api), 0o600))
		}
		written, err := os.ReadFile(file)
		must(t, err)
		if diff := cmp.Diff(strings.Split(string(written), "\n"), strings.Split(api, "\n")); diff != "" {
			t.Errorf("%s differs (-file +package). Say in CHANGELOG.md what changes, and run\n\tgo test ./internal/arch -run API -update-api\n%s", file, diff)
		}
		for _, match := range qualified.FindAllStringSubmatch(api, -1) {
			if !has(namedByAPI, match[1]) {
				t.Errorf("the exported API of %s must not name %s", name, match[1])
			}
		}
	}
}

// qualified matches what is named of another package.
var qualified = regexp.MustCompile(`\b([a-z]\w*)\.[A-Z]`)

// describe returns the exported declarations of a package without comments and bodies.
func describe(t *testing.T, tr tree, name string) string {
	t.Helper()
	var declarations []string
	for at, text := range tr {
		if path.Dir(at) != name || !strings.HasSuffix(at, ".go") || strings.HasSuffix(at, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), at, text, 0)
		must(t, err)
		ast.FileExports(file)
		for _, d := range file.Decls {
			if text := declared(t, d); text != "" {
				declarations = append(declarations, text)
			}
		}
	}
	slices.Sort(declarations)
	return strings.Join(declarations, "\n\n") + "\n"
}

// declared is a declaration as another module sees it; nothing where it sees none.
func declared(t *testing.T, d ast.Decl) string {
	t.Helper()
	switch d := d.(type) {
	case *ast.GenDecl:
		if d.Tok == token.IMPORT || len(d.Specs) == 0 {
			return ""
		}
	case *ast.FuncDecl:
		d.Body = nil
		if d.Recv != nil && !ast.IsExported(strings.TrimLeft(source(t, d.Recv.List[0].Type), "*")) {
			return ""
		}
	}
	return source(t, d)
}

func source(t *testing.T, node ast.Node) string {
	t.Helper()
	var b strings.Builder
	must(t, format.Node(&b, token.NewFileSet(), node))
	return b.String()
}
