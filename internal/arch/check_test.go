package arch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

// module is the import path of the tree whose imports are checked.
const module = "github.com/payonce/payonce"

const (
	// strict are packages whose tests import no more than they do. Other tests may import
	// what they need, such as a database.
	strict = "domain e2e internal/robustness/demo internal/robustness/harness"
	// pure are packages that import, outside this module, the standard library alone.
	pure = "domain fulfillment/schema internal/audit/schema"
	// testHelpers are packages that every test may import: they know none of the service.
	testHelpers = "internal/testrun"
)

const (
	// public are packages that other modules import. Their exported API is in testdata/api/, and no
	// line of it names a package but these: of the standard library, pgx, Watermill, and public ones.
	public = "groupcommit idempotency inbox inbox/deadletter outbox outbox/doorbell"
	// namedByAPI are the names of these packages.
	namedByAPI = "context errors http json slog time pgx pgxpool message groupcommit"
)

// A rule is a line of testdata/imports.txt, where each kind of them is explained.
type rule struct{ path, list, why string }

// readRules returns the rules of each kind.
func readRules(tb testing.TB) map[string][]rule {
	tb.Helper()
	text, err := os.ReadFile("testdata/imports.txt")
	must(tb, err)
	rules := make(map[string][]rule)
	for line := range strings.Lines(string(text)) {
		parts := strings.Split(line, "|")
		switch {
		case line[0] == '#' || line == "\n":
		case len(parts) == 3:
			kind, path, _ := strings.Cut(strings.TrimSpace(parts[0]), " ")
			rules[kind] = append(rules[kind], rule{path, strings.TrimSpace(parts[1]), strings.TrimSpace(parts[2])})
		default:
			tb.Errorf("imports.txt has a line of %d parts: %s", len(parts), line)
		}
	}
	return rules
}

// pkg is what the checks need of "go list -json".
type pkg struct {
	ImportPath                               string
	Imports, TestImports, XTestImports, Deps []string
	GoFiles, EmbedFiles                      []string
}

// listed are the packages of the module.
var listed = sync.OnceValues(func() (pkgs []pkg, err error) {
	cmd := exec.CommandContext(context.Background(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Deps,GoFiles,EmbedFiles", "./...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	for in := json.NewDecoder(bytes.NewReader(out)); err == nil && in.More(); {
		var p pkg
		err = in.Decode(&p)
		pkgs = append(pkgs, p)
	}
	return pkgs, err
})

func list(tb testing.TB) []pkg {
	tb.Helper()
	readTree(tb) // so that the cache of go test knows the files: go list is another process
	pkgs, err := listed()
	must(tb, err)
	return pkgs
}

// checkRules returns a sentence for each import between two packages of this module that
// no rule allows, and for each difference between the rules and the tree.
func checkRules(rules []rule, pkgs []pkg) (broken []string) {
	for _, p := range pkgs {
		at := local(p.ImportPath)
		i := slices.IndexFunc(rules, func(r rule) bool { return r.path == at })
		if i < 0 {
			broken = append(broken, at+" has no rule: add it to imports.txt with what it may import and why")
			continue
		}
		broken = append(broken, checkRule(rules[i], p)...)
	}
	for _, r := range rules {
		if !slices.ContainsFunc(pkgs, func(p pkg) bool { return local(p.ImportPath) == r.path }) {
			broken = append(broken, r.path+" has a rule and is not in the tree: remove it from imports.txt")
		}
	}
	return broken
}

func checkRule(r rule, p pkg) (broken []string) {
	imports := p.Imports
	if has(strict, r.path) {
		imports = p.all()
	}
	for _, path := range unique(imports) {
		allowed := true
		switch own := slices.Contains(p.Imports, path); {
		case path == p.ImportPath: // its own external test
		case has(testHelpers, local(path)) && !own:
		case under(path, module):
			banned, allBut := strings.CutPrefix(r.list, "all but ")
			allowed = has(banned, local(path)) != allBut
		case has(pure, r.path) && own:
			first, _, _ := strings.Cut(path, "/")
			allowed = !strings.Contains(first, ".") // the name of a host
		}
		if !allowed {
			broken = append(broken, fmt.Sprintf("%s must not import %s: %s", r.path, local(path), r.why))
		}
	}
	return broken
}

// checkThirdParties returns a sentence for each third party outside its packages.
func checkThirdParties(modules []rule, pkgs []pkg) (broken []string) {
	for _, p := range pkgs {
		for _, path := range unique(p.all()) {
			for _, r := range modules {
				if under(path, r.path) && !has(r.list, local(p.ImportPath)) {
					broken = append(broken, fmt.Sprintf("%s must not import %s: %s", local(p.ImportPath), path, r.why))
				}
			}
		}
	}
	return broken
}

// checkBans returns a sentence for each package that a program links and must not: "go mod why" says through
// what.
func checkBans(programs []rule, pkgs []pkg) (broken []string) {
	for _, p := range pkgs {
		for _, r := range programs {
			if r.path == local(p.ImportPath) && slices.ContainsFunc(p.Deps, func(at string) bool { return under(at, r.list) }) {
				broken = append(broken, fmt.Sprintf("%s must not link %s: %s", r.path, r.list, r.why))
			}
		}
	}
	return broken
}

// all are the imports of a package and of its tests.
func (p pkg) all() []string { return slices.Concat(p.Imports, p.TestImports, p.XTestImports) }

// has reports whether a list that is separated by spaces holds a path.
func has(list, path string) bool { return slices.Contains(strings.Fields(list), path) }

// under reports whether path is tree or lies below it.
func under(path, tree string) bool { return path == tree || strings.HasPrefix(path, tree+"/") }

// local is a package of this module as the rules write it.
func local(path string) string { return strings.TrimPrefix(path, module+"/") }

func unique(paths []string) []string { return slices.Compact(slices.Sorted(slices.Values(paths))) }

func TestMain(m *testing.M) { testrun.Main(m) }

func TestPackages_followTheirRules(t *testing.T) {
	t.Parallel()
	rules, pkgs := readRules(t), list(t)
	for _, broken := range slices.Concat(checkRules(rules["package"], pkgs), checkThirdParties(rules["module"], pkgs), checkBans(rules["program"], pkgs)) {
		t.Error(broken)
	}
}

// TestRules_nameWhatExists finds slips that would make a rule check nothing: a package that
// has two rules, or a name that no rule has.
func TestRules_nameWhatExists(t *testing.T) {
	t.Parallel()
	rules, paths := readRules(t), make(map[string]bool)
	named := []string{strict, pure, testHelpers, public}
	for _, r := range rules["package"] {
		if paths[r.path] || r.why == "" {
			t.Errorf("%s has two rules, or one without a reason", r.path)
		}
		paths[r.path] = true
		named = append(named, strings.TrimPrefix(r.list, "all but "))
	}
	if len(rules) != 3 {
		t.Errorf("imports.txt has %d kinds of lines", len(rules))
	}
	for _, r := range rules["module"] {
		named = append(named, r.list)
	}
	for _, r := range rules["program"] {
		named = append(named, r.path)
		if under(r.list, module) {
			named = append(named, local(r.list))
		}
	}
	for path := range strings.FieldsSeq(strings.Join(named, " ")) {
		if !paths[path] {
			t.Errorf("%s is named and has no rule", path)
		}
	}
}

// TestChecks_findPlantedViolations shows that the checks can fail: each row is a package with imports of its own and
// of its tests, and what it causes is a sentence that begins so, or none.
func TestChecks_findPlantedViolations(t *testing.T) {
	t.Parallel()
	const at = module + "/"
	rules := readRules(t)
	for _, planted := range []struct{ path, imports, ofTests, want string }{
		{"domain", "errors github.com/google/uuid", "", "domain must not import github.com/google/uuid: "},
		{"domain", "errors", at + "internal/postgres", "domain must not import internal/postgres: "},
		{"ledger", "", at + "internal/postgres " + at + "internal/testrun", ""},
		{"fulfillment", at + "intake", "", "fulfillment must not import intake: "},
		{"fulfillment", "", "github.com/labstack/echo/v4", "fulfillment must not import github.com/labstack/echo/v4: "},
		{"e2e", "", at + "ledger", "e2e must not import ledger: "},
		{"internal/util", "", "", "internal/util has no rule"},
		{"cmd/sandbox", "github.com/stripes testing2", "", ""}, // begin alike
		{"cmd/sandbox", "testing", "", "cmd/sandbox must not link testing: "},
	} {
		p := []pkg{{ImportPath: at + planted.path, Imports: strings.Fields(planted.imports), XTestImports: strings.Fields(planted.ofTests)}}
		p[0].Deps = p[0].Imports
		only := slices.DeleteFunc(slices.Clone(rules["package"]), func(r rule) bool { return r.path != planted.path })
		got := slices.Concat(checkRules(only, p), checkThirdParties(rules["module"], p), checkBans(rules["program"], p))
		if (len(got) == 1) != (planted.want != "") || len(got) == 1 && !strings.HasPrefix(got[0], planted.want) {
			t.Errorf("%+v causes %q", planted, got)
		}
	}
	if got := checkRules([]rule{{path: "outbox"}}, nil); len(got) != 1 {
		t.Errorf("a rule without a package causes %q", got)
	}
}
