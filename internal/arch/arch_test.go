package arch_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

func TestPackages_followTheirRules(t *testing.T) {
	t.Parallel()
	pkgs := list(t, "./...")
	report(t, checkRules(rules, pkgs))
	report(t, checkThirdParties(pkgs))
	report(t, checkBans(pkgs))
	report(t, checkDocs(pkgs))
}

// TestRules_nameWhatExists finds slips that would make a rule check nothing: a package that
// has two rules, or a name that no rule has.
func TestRules_nameWhatExists(t *testing.T) {
	t.Parallel()
	paths := make(map[string]bool)
	named := strict + " " + pure + " " + testHelpers + " " + public
	for _, r := range rules {
		if paths[r.path] || r.why == "" {
			t.Errorf("%s has two rules, or one without a reason", r.path)
		}
		paths[r.path] = true
		named += " " + strings.TrimPrefix(r.imports, "all but ")
	}
	for _, t := range thirdParties {
		named += " " + t.packages
	}
	for _, b := range bans {
		named += " " + b.program
		if under(b.path, module) {
			named += " " + local(b.path)
		}
	}
	for path := range strings.FieldsSeq(named) {
		if !paths[path] {
			t.Errorf("%s is named and has no rule", path)
		}
	}
}

// TestChecks_findPlantedViolations shows that the checks can fail: each case plants a
// violation and names the beginning of the sentence that it must cause.
func TestChecks_findPlantedViolations(t *testing.T) {
	t.Parallel()
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
		return pkg{ImportPath: at(path), Imports: own, XTestImports: tests, Deps: own, Name: "planted"}
	}
	check := func(p pkg) []string {
		only := slices.DeleteFunc(slices.Clone(rules), func(r rule) bool { return r.path != local(p.ImportPath) })
		return slices.Concat(checkRules(only, []pkg{p}), checkThirdParties([]pkg{p}))
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
		"the api links stripe-go":       {checkBans([]pkg{planted("cmd/api", "github.com/stripe/stripe-go/v85")}), []string{"cmd/api must not link github.com/stripe: " + noProvider}},
		"a name that only begins alike": {checkBans([]pkg{planted("cmd/api", "github.com/stripes", "internal/stripes", "testing2")}), nil},
		"a package that does not say what it is": {
			checkDocs([]pkg{planted("inbox"), {ImportPath: at("outbox"), Name: "outbox", Doc: "Things."}, {ImportPath: at("ledger"), Name: "ledger", Doc: "Package ledger stores."}}),
			[]string{"inbox has no package doc", "outbox: the package doc does not begin with \"Package outbox\""},
		},
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
