package arch_test

import (
	"flag"
	"fmt"
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
		api, named := describe(t, readTree(t), name)
		file := filepath.Join("testdata", "api", name+".txt")
		if *updateAPI {
			must(t, os.WriteFile(file, []byte(api), 0o600))
		}
		written, err := os.ReadFile(file)
		must(t, err)
		if diff := cmp.Diff(strings.Split(string(written), "\n"), strings.Split(api, "\n")); diff != "" {
			t.Errorf("%s differs (-file +package). Say in CHANGELOG.md what changes, and run\n\tgo test ./internal/arch -run API -update-api\n%s", file, diff)
		}
		report(t, checkNamed(name, named))
	}
}

// describe returns the exported declarations of a package without comments and bodies, and the paths of the
// packages that they name.
func describe(t *testing.T, tr tree, name string) (api string, named []string) {
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
				named = append(named, namedBy(file, d)...)
			}
		}
	}
	slices.Sort(declarations)
	return strings.Join(declarations, "\n\n") + "\n", unique(named)
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

// namedBy are the paths of the packages that a declaration of a file names.
func namedBy(file *ast.File, d ast.Decl) (named []string) {
	ast.Inspect(d, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			for _, imported := range file.Imports {
				at := strings.Trim(imported.Path.Value, `"`)
				if x, ok := selector.X.(*ast.Ident); ok && x.Name == path.Base(major.ReplaceAllString(at, "")) {
					named = append(named, at)
				}
			}
		}
		return true
	})
	return named
}

var major = regexp.MustCompile(`/v[0-9]+$`)

// checkNamed returns a sentence for each package that another module cannot name, or should
// not need.
func checkNamed(name string, named []string) (broken []string) {
	for _, at := range named {
		host, _, _ := strings.Cut(at, "/")
		theirs := slices.ContainsFunc(strings.Fields(apiModules), func(m string) bool { return under(at, m) })
		if strings.Contains(host, ".") && !theirs && !has(public, local(at)) {
			broken = append(broken, fmt.Sprintf("the exported API of %s must not name %s", name, local(at)))
		}
	}
	return broken
}
