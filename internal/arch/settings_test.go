package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/arch"
)

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
