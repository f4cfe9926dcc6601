package arch_test

import (
	"flag"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/arch"
)

var updateAPI = flag.Bool("update-api", false, "write the exported API of the public packages to testdata/api/")

// TestAPI_isWrittenDown compares the exported API of each public package with its file in
// testdata/api/, and checks that another module can name everything in it.
func TestAPI_isWrittenDown(t *testing.T) {
	t.Parallel()
	for name := range strings.FieldsSeq(public) {
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

// readers are the folders whose structs name settings, with the titles of their sections.
var readers = []struct{ dir, title string }{
	{"cmd/api", "api"},
	{"cmd/worker", "worker"},
	{"internal/program", "api and worker: connections, metrics, log"},
	{"internal/telemetry", "api and worker: traces"},
	{"cmd/payonce", "payonce"},
	{"internal/console", "payonce console and payonce demo"},
	{"internal/robustness/demo", "payonce demo --running"},
	{"internal/sandbox", "sandbox"},
}

// TestReference_settings writes a section for each program, with the fields of its structs
// that have the tag env. A field's comment is the meaning of the setting.
func TestReference_settings(t *testing.T) {
	t.Parallel()
	found := make(map[string][][]string)
	tr := readTree(t)
	for _, at := range slices.Sorted(maps.Keys(tr)) {
		if strings.HasSuffix(at, ".go") && !strings.HasSuffix(at, "_test.go") {
			found[path.Dir(at)] = append(found[path.Dir(at)], settingsIn(t, at, tr[at])...)
		}
	}
	for _, r := range readers {
		arch.Section(t, "settings.md", r.title, arch.Table([]string{"setting", "type", "default", "meaning"}, found[r.dir]))
		delete(found, r.dir)
	}
	for dir, rows := range found {
		for _, row := range rows {
			t.Errorf("%s reads %s, and docs/reference/settings.md has no section for it", dir, row[0])
		}
	}
}

// settingsIn are the settings of a file: name, type, default, meaning.
func settingsIn(t *testing.T, at, text string) (rows [][]string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), at, text, parser.ParseComments|parser.SkipObjectResolution)
	must(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok || field.Tag == nil {
			return true
		}
		quoted, err := strconv.Unquote(field.Tag.Value)
		must(t, err)
		tag := reflect.StructTag(quoted)
		name, options, _ := strings.Cut(tag.Get("env"), ",")
		if name == "" {
			return true
		}
		meaning := strings.Join(strings.Fields(field.Doc.Text()), " ")
		if meaning == "" {
			t.Errorf("%s: no comment says what %s means", at, name)
		}
		kind, standard := typeOfSetting(t, field.Type), arch.Code(tag.Get("envDefault"))
		if kind == boolean {
			standard = arch.Code("false")
		}
		if strings.Contains(options, "required") {
			standard = "required"
		}
		rows = append(rows, []string{arch.Code(name), kind, standard, meaning})
		return true
	})
	return rows
}

const boolean = "true or false"

// typeOfSetting names the type of a setting for an operator.
func typeOfSetting(t *testing.T, e ast.Expr) string {
	t.Helper()
	name, several := strings.CutPrefix(types.ExprString(e), "[]")
	kind := map[string]string{
		"string": "text", "int": "number", "int32": "number", "bool": boolean,
		"Duration": "duration", "Secret": "secret", "Prefix": "network", "Level": "level",
	}[name[strings.LastIndex(name, ".")+1:]]
	if kind == "" {
		t.Errorf("a setting has the type %s, which has no name here", name)
	}
	if several {
		kind += ", several"
	}
	return kind
}
