package arch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/testrun"
)

// pkg is what the checks need of "go list -json".
type pkg struct {
	ImportPath                               string
	Imports, TestImports, XTestImports, Deps []string
	GoFiles, EmbedFiles                      []string
}

// list runs go list at the module's root.
func list(tb testing.TB, args ...string) (pkgs []pkg) {
	tb.Helper()
	readTree(tb) // so that the cache of go test knows the files: go list is another process
	cmd := exec.CommandContext(tb.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,TestImports,XTestImports,Deps,GoFiles,EmbedFiles"}, args...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("%s: %v\n%s", cmd, err, &stderr)
	}
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := in.Decode(&p)
		if errors.Is(err, io.EOF) && len(pkgs) > 0 {
			return pkgs
		}
		if err != nil {
			tb.Fatalf("read the packages that %s prints: %v", cmd, err)
		}
		pkgs = append(pkgs, p)
	}
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
	rules, pkgs := readRules(t), list(t, "./...")
	report(t, checkRules(rules["package"], pkgs))
	report(t, checkThirdParties(rules["module"], pkgs))
	report(t, checkBans(rules["program"], pkgs))
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

// TestChecks_findPlantedViolations shows that the checks can fail: each case plants a
// violation and names the beginning of the sentence that it must cause.
func TestChecks_findPlantedViolations(t *testing.T) {
	t.Parallel()
	rules := readRules(t)
	bans := rules["program"]
	at := func(path string) string { return module + "/" + path }
	// planted is a package with imports, of which those after "tests" are its tests'.
	planted := func(path string, imports ...string) pkg {
		for i, p := range imports {
			if !strings.Contains(p, ".") && p != "errors" && p != "tests" {
				imports[i] = at(p)
			}
		}
		own, tests := imports, []string(nil)
		if i := slices.Index(imports, "tests"); i >= 0 {
			own, tests = imports[:i], imports[i+1:]
		}
		return pkg{ImportPath: at(path), Imports: own, XTestImports: tests, Deps: own}
	}
	check := func(p pkg) []string {
		only := slices.DeleteFunc(slices.Clone(rules["package"]), func(r rule) bool { return r.path != local(p.ImportPath) })
		return slices.Concat(checkRules(only, []pkg{p}), checkThirdParties(rules["module"], []pkg{p}))
	}
	for name, test := range map[string]struct {
		got  []string
		want []string
	}{
		"domain imports a third party":       {check(planted("domain", "errors", "github.com/google/uuid")), []string{"domain must not import github.com/google/uuid: "}},
		"a test of domain uses the database": {check(planted("domain", "tests", "internal/postgres")), []string{"domain must not import internal/postgres: "}},
		"a test of the ledger may use it":    {check(planted("ledger", "tests", "internal/postgres", "internal/testrun")), nil},
		"fulfillment calls intake back":      {check(planted("fulfillment", "intake")), []string{"fulfillment must not import intake: "}},
		"a black-box test shares the code":   {check(planted("e2e", "tests", "ledger")), []string{"e2e must not import ledger: "}},
		"a package has no rule":              {check(planted("internal/util")), []string{"internal/util has no rule"}},
		"a rule has no package":              {checkRules([]rule{{path: "outbox"}}, nil), []string{"outbox has a rule and is not in the tree"}},
		"a step takes a message of Watermill, its test an Echo context": {
			check(planted("fulfillment", "github.com/ThreeDotsLabs/watermill/message", "tests", "github.com/labstack/echo/v4")),
			[]string{"fulfillment must not import github.com/ThreeDotsLabs/watermill/message: ", "fulfillment must not import github.com/labstack/echo/v4: "},
		},
		"the api links stripe-go":       {checkBans(bans, []pkg{planted("cmd/api", "github.com/stripe/stripe-go/v85")}), []string{"cmd/api must not link github.com/stripe: "}},
		"a name that only begins alike": {checkBans(bans, []pkg{planted("cmd/api", "github.com/stripes", "internal/stripes", "testing2")}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(test.got) != len(test.want) {
				t.Fatalf("sentences (-want +got):\n%s", cmp.Diff(test.want, test.got))
			}
			for i, want := range test.want {
				if !strings.HasPrefix(test.got[i], want) {
					t.Errorf("sentence %d: got %q, want one that begins with %q", i, test.got[i], want)
				}
			}
		})
	}
}

func report(tb testing.TB, broken []string) {
	tb.Helper()
	for _, b := range broken {
		tb.Error(b)
	}
}
