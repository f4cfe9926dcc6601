package defects_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// sources are the packages and files of the tree, by their folders.
type sources struct {
	packages map[string]source
	files    map[string]bool // by path, and by name alone
}

// source is what a package declares.
type source struct {
	names    map[string]bool // functions, types, values, and Type.Method or Type.Field
	tests    map[string]bool
	comments []string // of its code
}

// readSources reads all Go files below the root.
func readSources(t *testing.T) sources {
	t.Helper()
	tree := sources{packages: make(map[string]source), files: make(map[string]bool)}
	err := fs.WalkDir(os.DirFS(root), ".", func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name := entry.Name(); name == "testdata" || (strings.HasPrefix(name, ".") && name != "." && name != ".ci") {
				return fs.SkipDir
			}
			tree.files[at+"/"] = true
			return nil
		}
		tree.files[at], tree.files[entry.Name()] = true, true
		if strings.HasSuffix(at, ".go") {
			return tree.add(at)
		}
		return nil
	})
	must(t, err)
	return tree
}

func (s sources) add(at string) error {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, at), nil, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return err
	}
	dir := path.Dir(at)
	found, known := s.packages[dir]
	if !known {
		found = source{names: make(map[string]bool), tests: make(map[string]bool)}
	}
	for _, group := range file.Comments {
		if !strings.HasSuffix(at, "_test.go") {
			found.comments = append(found.comments, group.Text())
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if strings.HasSuffix(at, "_test.go") {
			found.readTest(n)
		} else {
			found.readCode(n)
		}
		return true
	})
	s.packages[dir] = found
	return nil
}

func (s *source) readTest(n ast.Node) {
	if f, ok := n.(*ast.FuncDecl); ok {
		s.tests[f.Name.Name] = true
	}
}

func (s *source) readCode(n ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		name := n.Name.Name
		if n.Recv != nil {
			name = typeName(n.Recv.List[0].Type) + "." + name
		}
		s.names[name] = true
	case *ast.TypeSpec:
		s.names[n.Name.Name] = true
		if structure, ok := n.Type.(*ast.StructType); ok {
			for _, field := range structure.Fields.List {
				for _, name := range field.Names {
					s.names[n.Name.Name+"."+name.Name] = true
				}
			}
		}
	case *ast.ValueSpec:
		for _, name := range n.Names {
			s.names[name.Name] = true
		}
	}
}

// typeName is the name of a receiver's type, without pointer and parameters.
func typeName(e ast.Expr) string {
	name, _, _ := strings.Cut(types.ExprString(e), "[")
	return strings.TrimPrefix(name, "*")
}

// has reports whether the package has a test by that name. Names of subtests are not looked at.
func (s source) has(test string) bool {
	function, _, _ := strings.Cut(test, "/")
	return s.tests[function]
}

// anyHas reports whether any package has it.
func (s sources) anyHas(test string) bool {
	for _, at := range s.packages {
		if at.has(test) {
			return true
		}
	}
	return false
}
