package defects_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root     = "../.."
	patterns = root + "/docs/patterns.md"

	items   = 60
	defects = 7
)

// TestPatterns holds docs/patterns.md against the tree: whoever renames a test or
// a function that it names is told so here.
func TestPatterns(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(patterns)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")

	t.Run("its table has every item once, each with a test or a reason", func(t *testing.T) {
		t.Parallel()
		var found []int
		for _, row := range rows(lines) {
			numbers, err := numbersOf(row[0])
			if err != nil {
				t.Errorf("%s: %v", row[0], err)
			}
			found = append(found, numbers...)
			if len(row) != 4 {
				t.Errorf("row %s has %d cells", row[0], len(row))
				continue
			}
			where := strings.ToLower(row[2])
			reason := strings.Contains(where, "deliberately") || strings.Contains(where, "not yet")
			if tested := len(testsIn(row[3])) > 0; !tested && !reason {
				t.Errorf("row %s names neither a test nor a reason", row[0])
			}
		}
		slices.Sort(found)
		for i := range max(items, len(found)) {
			if i >= len(found) || found[i] != i+1 {
				t.Fatalf("the items are %d, want 1 to %d, each once", found, items)
			}
		}
	})

	t.Run("it tells of every defect, with a test of both sides", func(t *testing.T) {
		t.Parallel()
		told := make(map[string]string)
		for test := range testsIn(string(text)) {
			name := strings.TrimPrefix(test, "internal/defects.Test")
			defect, side, _ := strings.Cut(name, "/")
			side, _, _ = strings.Cut(side, ":")
			told[defect] += side
		}
		for i := range defects {
			defect := fmt.Sprintf("D%d", i+1)
			if sides := told[defect]; !strings.Contains(sides, "the_document") || !strings.Contains(sides, "ours") {
				t.Errorf("%s: %q", defect, sides)
			}
			if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "## "+defect+".") }) {
				t.Errorf("%s has no section", defect)
			}
		}
	})

	t.Run("the tests that it names are there", func(t *testing.T) {
		t.Parallel()
		tree := make(sources)
		for test := range testsIn(string(text)) {
			dir, name, _ := strings.Cut(test, ".")
			names := strings.Split(name, "/")
			at := tree.read(t, dir)
			if !at.tests[names[0]] {
				t.Errorf("%s: no such test", test)
			}
			for _, subtest := range names[1:] {
				if !at.texts[subtest] {
					t.Errorf("%s: no such subtest", test)
				}
			}
		}
	})

	t.Run("the code and the files that it names are there", func(t *testing.T) {
		t.Parallel()
		tree := make(sources)
		for _, name := range quoted(string(text)) {
			if !isIdentifier.MatchString(name) || strings.Contains(name, ".Test") || strings.Contains(name, ".Example") {
				if isFile.MatchString(name) {
					if _, err := os.Stat(filepath.Join(root, name)); err != nil {
						t.Error(err)
					}
				}
				continue
			}
			dir, identifier, _ := strings.Cut(name, ".")
			if !tree.read(t, dir).names[identifier] {
				t.Errorf("%s: no such name", name)
			}
		}
	})
}

var (
	isIdentifier = regexp.MustCompile(`^[a-z][a-z/]*\.[A-Z]\w*(\.[A-Z]\w*)?$`)
	isTest       = regexp.MustCompile(`^[a-z][a-z0-9/]*\.(Test|Fuzz|Example)\w*(/.+)?$`)
	isFile       = regexp.MustCompile(`^[\w/]+\.(go|md|sql)$`)
	inQuotes     = regexp.MustCompile("`([^`]+)`")
)

// rows are the cells of the table of items.
func rows(lines []string) (rows [][]string) {
	for _, line := range lines {
		if cells, ok := strings.CutPrefix(line, "| "); ok && cells[0] >= '1' && cells[0] <= '9' {
			row := strings.Split(strings.TrimSuffix(cells, " |"), " | ")
			rows = append(rows, row)
		}
	}
	return rows
}

// numbersOf reads "3", "3, 5" and "3–5".
func numbersOf(cell string) (numbers []int, err error) {
	for part := range strings.SplitSeq(cell, ", ") {
		first, last, isRange := strings.Cut(part, "–")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			return nil, err
		}
		to, err := strconv.Atoi(last)
		if err != nil {
			return nil, err
		}
		for n := from; n <= to; n++ {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

func quoted(text string) (names []string) {
	for _, match := range inQuotes.FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	return names
}

// testsIn are the tests that a text names, as package.Test/subtest.
func testsIn(text string) map[string]bool {
	tests := make(map[string]bool)
	for _, name := range quoted(text) {
		if isTest.MatchString(name) {
			tests[name] = true
		}
	}
	return tests
}

// source is what a package declares.
type source struct {
	names map[string]bool // exported functions, types, values, and Type.Method or Type.Field
	tests map[string]bool
	texts map[string]bool // the literals in its tests, written as names of subtests
}

type sources map[string]source

func (s sources) read(t *testing.T, dir string) source {
	t.Helper()
	if known, ok := s[dir]; ok {
		return known
	}
	found := source{names: make(map[string]bool), tests: make(map[string]bool), texts: make(map[string]bool)}
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("%s: no package: %v", dir, err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("read %s: %v", path, err)
			continue
		}
		isTest := strings.HasSuffix(path, "_test.go")
		ast.Inspect(file, func(n ast.Node) bool {
			if isTest {
				found.readTest(n)
			} else {
				found.readCode(n)
			}
			return true
		})
	}
	s[dir] = found
	return found
}

func (s source) readTest(n ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		s.tests[n.Name.Name] = true
	case *ast.BasicLit:
		if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
			s.texts[strings.ReplaceAll(text, " ", "_")] = true
		}
	}
}

func (s source) readCode(n ast.Node) {
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
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
