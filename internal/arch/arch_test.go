package arch_test

import (
	"os"
	"regexp"
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
	report(t, checkPath(pkgs))
	report(t, checkThirdParties(pkgs))
	report(t, checkDocs(pkgs))
}

func TestPrograms_linkNothingThatIsBanned(t *testing.T) {
	t.Parallel()
	var programs []string
	for _, b := range bans {
		programs = append(programs, b.program)
	}
	for _, program := range unique(programs) {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			report(t, checkBans(program, list(t, "-deps", "./"+program)))
		})
	}
}

// TestArchitecture_drawsTheChargePath reads ARCHITECTURE.md, which draws two ways of a charge.
// Each package on one is a package of chargePath, in its order, or one of the two that commit.
func TestArchitecture_drawsTheChargePath(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../ARCHITECTURE.md")
	testrun.Must(t, err)
	commit := []string{"internal/postgres", "groupcommit"}
	for _, way := range []struct {
		heading  string
		most     int
		packages []string
	}{
		{"### From the HTTP handler to the commit", 5, []string{"internal/httpapi", "intake", "idempotency"}},
		{"### From the subscriber to the committed step", 6, []string{"outbox", "inbox", "fulfillment"}},
	} {
		_, section, _ := strings.Cut(string(page), way.heading)
		section, _, _ = strings.Cut(section, "\n#")
		var drawn []string
		for _, line := range regexp.MustCompile("(?m)^- `([^`]+)`: ").FindAllStringSubmatch(section, -1) {
			drawn = append(drawn, line[1])
		}
		if diff := cmp.Diff(slices.Concat(way.packages, commit), drawn); diff != "" || len(drawn) > way.most {
			t.Errorf("%s: (-want +got)\n%s", way.heading, diff)
		}
		at := -1
		for _, name := range way.packages {
			next := slices.IndexFunc(chargePath, func(on struct{ path, except, why string }) bool { return on.path == name })
			if next <= at {
				t.Errorf("%s: %s is not in the order of chargePath", way.heading, name)
			}
			at = next
		}
	}
}

// TestRules_nameWhatExists finds slips that would make a rule check nothing: a package that
// has two rules, or a name that no rule has.
func TestRules_nameWhatExists(t *testing.T) {
	t.Parallel()
	var paths []string
	for _, r := range rules {
		if slices.Contains(paths, r.path) {
			t.Errorf("%s has two rules", r.path)
		}
		if r.why == "" {
			t.Errorf("%s has no reason", r.path)
		}
		paths = append(paths, r.path)
	}
	known := func(where, list string) {
		for path := range strings.FieldsSeq(list) {
			if !slices.Contains(paths, path) {
				t.Errorf("%s names %s, which has no rule", where, path)
			}
		}
	}
	known("a list", strict+" "+pure+" "+testHelpers)
	for _, r := range rules {
		known(r.path, strings.TrimPrefix(r.imports, "all but "))
	}
	for _, p := range chargePath {
		known("the path of a charge", p.path+" "+p.except)
	}
	for _, t := range thirdParties {
		known(t.path, t.packages)
	}
	for _, b := range bans {
		known("a ban", b.program)
		if under(b.path, module) {
			known("a ban of "+b.program, local(b.path))
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
		return slices.Concat(checkRules(only, []pkg{p}), checkPath([]pkg{p}), checkThirdParties([]pkg{p}))
	}
	for name, test := range map[string]struct {
		got  []string
		want []string
	}{
		"domain imports a third party":            {check(planted("domain", "errors", "github.com/google/uuid")), []string{"domain must not import github.com/google/uuid: "}},
		"domain may test itself with one":         {check(planted("domain", "errors", "tests", "domain", "github.com/google/go-cmp/cmp")), nil},
		"a test of domain uses the database":      {check(planted("domain", "tests", "internal/postgres")), []string{"domain must not import internal/postgres: "}},
		"a test of the ledger may use it":         {check(planted("ledger", "tests", "internal/postgres", "internal/await")), nil},
		"the ledger writes into the outbox":       {check(planted("ledger", "domain", "outbox")), []string{"ledger must not import outbox: ", "ledger must not link outbox, "}},
		"the inbox learns about charges":          {check(planted("inbox", "domain")), []string{"inbox must not import domain: "}},
		"intake calls fulfillment":                {check(planted("intake", "fulfillment")), []string{"intake must not import fulfillment: "}},
		"fulfillment calls intake back":           {check(planted("fulfillment", "intake")), []string{"fulfillment must not import intake: ", "fulfillment must not link intake, "}},
		"fulfillment ends its delivery":           {check(planted("fulfillment", "inbox", "outbox")), nil},
		"the provider's client calls a step back": {check(planted("internal/stripe", "fulfillment")), []string{"internal/stripe must not import fulfillment: ", "internal/stripe must not link fulfillment, "}},
		"a handler calls the provider":            {check(planted("internal/httpapi", "intake", "internal/stripe")), []string{"internal/httpapi must not import internal/stripe: "}},
		"the operator's tool accepts a charge":    {check(planted("cmd/payonce", "internal/postgres", "intake")), []string{"cmd/payonce must not import intake: "}},
		"a black-box test shares the code":        {check(planted("e2e", "tests", "ledger")), []string{"e2e must not import ledger: "}},
		"a package has no rule":                   {check(planted("internal/util")), []string{"internal/util has no rule"}},
		"a rule has no package":                   {checkRules([]rule{{path: "outbox"}}, nil), []string{"outbox has a rule and is not in the tree"}},
		"a step takes a message of Watermill, its test an Echo context": {
			check(planted("fulfillment", "github.com/ThreeDotsLabs/watermill/message", "tests", "github.com/labstack/echo/v4")),
			[]string{"fulfillment must not import github.com/ThreeDotsLabs/watermill/message: ", "fulfillment must not import github.com/labstack/echo/v4: "},
		},
		"third parties where they belong": {check(planted("outbox", "github.com/ThreeDotsLabs/watermill")), nil},
		"the api links stripe-go through a package that looks harmless": {
			checkBans("cmd/api", []pkg{planted("cmd/api", "internal/audit"), planted("internal/audit", "github.com/stripe/stripe-go/v85")}),
			[]string{"cmd/api must not link github.com/stripe: " + noProvider + "\n\t" + at("cmd/api") + "\n\timports " + at("internal/audit") + "\n\timports github.com/stripe/stripe-go/v85"},
		},
		"a name that only begins alike": {checkBans("cmd/api", []pkg{planted("cmd/api", "github.com/stripes", "internal/stripes", "testing2")}), nil},
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
