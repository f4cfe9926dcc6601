package arch_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/testrun"
)

var updateAPI = flag.Bool("update-api", false, "write the exported API of the public packages to testdata/api/")

// TestAPI_isWrittenDown compares the exported API of each public package with its file in
// testdata/api/, and checks that another module can name everything in it.
func TestAPI_isWrittenDown(t *testing.T) {
	t.Parallel()
	args := []string{"-export", "-deps"}
	for name := range strings.FieldsSeq(public) {
		args = append(args, "./"+name)
	}
	linked := list(t, args...)
	load := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		i := slices.IndexFunc(linked, func(p pkg) bool { return p.ImportPath == path })
		return os.Open(linked[i].Export)
	})
	for name := range strings.FieldsSeq(public) {
		p, err := load.Import(module + "/" + name)
		testrun.Must(t, err)
		api, named := describe(p)
		file := filepath.Join("testdata", "api", name+".txt")
		if *updateAPI {
			testrun.Must(t, os.WriteFile(file, []byte(strings.Join(api, "\n")+"\n"), 0o600))
		}
		written, err := os.ReadFile(file)
		testrun.Must(t, err)
		if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(written)), "\n"), api); diff != "" {
			t.Errorf("%s differs (-file +package). Say in CHANGELOG.md what changes, and run\n\tgo test ./internal/arch -run API -update-api\n%s", file, diff)
		}
		report(t, checkNamed(name, named))
		i := slices.IndexFunc(linked, func(p pkg) bool { return local(p.ImportPath) == name })
		report(t, checkLeaves(name, linked[i].Deps))
	}
}

// TestAPI_findsPlantedViolations describes a package with one of everything.
func TestAPI_findsPlantedViolations(t *testing.T) {
	t.Parallel()
	p := check(t, `package inbox
import ("net/http"; "example.org/hidden"; "github.com/jackc/pgx/v5/pgxpool"; "github.com/labstack/echo"
	"github.com/payonce/payonce/groupcommit"; "github.com/payonce/payonce/internal/loop"; "github.com/payonce/payonce/ledger")
const C, D, e = "c", groupcommit.T(7), 8
var V, w http.T
func F[P any](a P, b ...*S) (func(pgxpool.T) error, error) { return nil, nil }
func f(hidden.T) {}
type A = ledger.T
type G[P comparable] map[P]bool
func (G[P]) M(P) {}
type I interface { J; M(echo.T) }
type J interface { m() }
type S struct { *T; B, c hidden.T; d loop.T }
func (*S) P() {}
func (S) V() {}
func (S) v(hidden.T) {}
type T struct{}
func (T) Promoted() {}
type u struct { X hidden.T }
`)
	api, named := describe(p)
	want := []string{
		"const C untyped string = \"c\"",
		"const D groupcommit.T = 7",
		"func F[P any](a P, b ...*S) (func(pgxpool.T) error, error)",
		"method (*S) P()",
		"method (G[P comparable]) M(P)",
		"method (S) Promoted()",
		"method (S) V()",
		"method (T) Promoted()",
		"type A = ledger.T",
		"type G[P comparable] map[P]bool",
		"type I interface",
		"type I interface, M(echo.T)",
		"type I interface, unexported methods",
		"type J interface",
		"type J interface, unexported methods",
		"type S struct",
		"type S struct, B hidden.T",
		"type S struct, embedded T *T",
		"type T struct",
		"var V http.T",
	}
	testrun.Same(t, "the API", want, api)
	want = []string{
		"the exported API of inbox must not name example.org/hidden",
		"the exported API of inbox must not name github.com/labstack/echo",
		"the exported API of inbox must not name ledger",
	}
	testrun.Same(t, "what it names", want, checkNamed("inbox", named))
	want = []string{"inbox must not link internal/postgres: it is neither public nor a leaf that no signature names"}
	links := []string{"errors", module + "/groupcommit", module + "/internal/loop", module + "/internal/postgres"}
	testrun.Same(t, "what it links", want, checkLeaves("inbox", links))
}

// check type-checks the source of a package whose imports each have one type, T.
func check(tb testing.TB, source string) *types.Package {
	tb.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "planted.go", source, 0)
	testrun.Must(tb, err)
	config := types.Config{Importer: importing(func(from string) *types.Package {
		p := types.NewPackage(from, path.Base(from))
		t := types.NewTypeName(token.NoPos, p, "T", nil)
		types.NewNamed(t, types.Typ[types.Int], nil)
		p.Scope().Insert(t)
		p.MarkComplete()
		return p
	})}
	p, err := config.Check(module+"/inbox", files, []*ast.File{file}, nil)
	testrun.Must(tb, err)
	return p
}

type importing func(from string) *types.Package

func (i importing) Import(from string) (*types.Package, error) { return i(from), nil }

// describe returns a sorted line for each exported constant, variable, function, type, field
// and method, and the paths of the packages that the lines name.
func describe(p *types.Package) (lines, named []string) {
	q := func(other *types.Package) string {
		if other == p {
			return ""
		}
		named = append(named, other.Path())
		return other.Name()
	}
	for _, name := range p.Scope().Names() {
		o := p.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		switch o := o.(type) {
		case *types.TypeName:
			lines = append(lines, describeType(o, q)...)
		case *types.Const:
			lines = append(lines, types.ObjectString(o, q)+" = "+o.Val().ExactString())
		default:
			lines = append(lines, types.ObjectString(o, q))
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines), unique(named)
}

var embedded = map[bool]string{true: "embedded "}

func describeType(o *types.TypeName, q types.Qualifier) (lines []string) {
	if o.IsAlias() {
		return []string{"type " + o.Name() + " = " + types.TypeString(types.Unalias(o.Type()), q)}
	}
	name := types.TypeString(o.Type(), q)
	methods := types.NewMethodSet(types.NewPointer(o.Type()))
	switch u := o.Type().Underlying().(type) {
	case *types.Struct:
		lines = append(lines, "type "+name+" struct")
		for field := range u.Fields() {
			if field.Exported() {
				lines = append(lines, "type "+name+" struct, "+embedded[field.Embedded()]+field.Name()+" "+types.TypeString(field.Type(), q))
			}
		}
	case *types.Interface:
		lines = append(lines, "type "+name+" interface")
		methods = types.NewMethodSet(o.Type())
	default:
		lines = append(lines, "type "+name+" "+types.TypeString(u, q))
	}
	value := types.NewMethodSet(o.Type())
	for selection := range methods.Methods() {
		m := selection.Obj()
		of := "method (*" + name + ") "
		switch {
		case types.IsInterface(o.Type()):
			of = "type " + name + " interface, "
		case value.Lookup(m.Pkg(), m.Name()) != nil:
			of = "method (" + name + ") "
		}
		switch {
		case m.Exported():
			lines = append(lines, of+m.Name()+strings.TrimPrefix(types.TypeString(m.Type(), q), "func"))
		case types.IsInterface(o.Type()):
			lines = append(lines, of+"unexported methods")
		}
	}
	return lines
}

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

// checkLeaves returns a sentence for each package of this module that a public package links
// and that is neither public nor a leaf.
func checkLeaves(name string, links []string) (broken []string) {
	for _, at := range links {
		if under(at, module) && !has(public+" "+leaves, local(at)) {
			broken = append(broken, fmt.Sprintf("%s must not link %s: it is neither public nor a leaf that no signature names", name, local(at)))
		}
	}
	return broken
}
