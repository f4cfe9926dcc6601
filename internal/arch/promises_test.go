package arch_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
)

const register = "docs/reference/promises.md"

var (
	promise        = regexp.MustCompile("^- `([a-z.-]+)`: .*`([^` ]+)`(?: \\*([^*]+)\\*)?\n$")
	cited          = regexp.MustCompile("[Pp]romises? `([a-z.-]+)`")
	providerChecks = regexp.MustCompile(`"(provider: [^"]+)"`)
)

// TestPromises: each promise has an id of its own, a home that exists, and a witness that the audit
// has; each check of the audit is the witness of a promise; and each id that a page cites exists.
func TestPromises(t *testing.T) {
	t.Parallel()
	tr, ids, witnesses := readTree(t), make(map[string]bool), make(map[string]bool)
	checks := auditChecks(t)
	for line := range strings.Lines(read(t, register)) {
		match := promise.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		id, home, witness := match[1], match[2], match[3]
		if ids[id] {
			t.Errorf("%s: two promises have this id", id)
		}
		ids[id], witnesses[witness] = true, true
		if !withPackage.MatchString(home) || !hasTest(home) {
			t.Errorf("%s: its home %s is no test", id, home)
		}
		if witness != "" && !slices.Contains(checks, witness) {
			t.Errorf("%s: its witness %q is no check of the audit", id, witness)
		}
	}
	if len(ids) == 0 {
		t.Error("there is no promise")
	}
	for _, check := range checks {
		if !witnesses[check] {
			t.Errorf("the check %q is the witness of no promise", check)
		}
	}
	for _, page := range tr.pages() {
		for _, match := range cited.FindAllStringSubmatch(tr[page], -1) {
			if !ids[match[1]] {
				t.Errorf("%s cites the promise %s, which there is not", page, match[1])
			}
		}
	}
}

// auditChecks are the names of all checks: those that an audit of an empty database makes, and
// those that compare the ledger with the provider.
func auditChecks(t *testing.T) (names []string) {
	t.Helper()
	report, err := audit.Run(t.Context(), testdb.Open(t))
	must(t, err)
	for _, check := range report.Checks {
		names = append(names, check.Name)
	}
	for at, text := range readTree(t) {
		if path.Dir(at) != "internal/audit" || strings.HasSuffix(at, "_test.go") {
			continue
		}
		for _, match := range providerChecks.FindAllStringSubmatch(text, -1) {
			if !strings.HasSuffix(match[1], ", not judged") {
				names = append(names, match[1])
			}
		}
	}
	return names
}
