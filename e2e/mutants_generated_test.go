package e2e_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// generatedList has mutants of the core packages that a generator chose, ten or more of each: a
// turned comparison, a call that is left out, a word of a statement. "equivalent" says why no test
// can kill one.
const generatedList = "testdata/generated.txt"

// eachPackage is how many of them each core package has.
const eachPackage = 10

// corePackages are those that mutants are generated in.
var corePackages = []string{"domain", "ledger", "idempotency", "inbox", "outbox", "groupcommit", "intake", "fulfillment"}

var (
	generated      = flag.String("generated", "", "what to do with the generated mutants: hunt (until a test fails), matrix (which tests fail); nothing where empty")
	generatedOf    = flag.String("generated-of", "", "regular expression: the files or names of the mutants that are hunted")
	generatedTests = flag.String("generated-tests", "", "packages, separated by spaces, whose tests hunt beside those of the mutant's own package")
)

// folder is that of the mutant's file.
func (m mutant) folder() string { return path.Dir(m.edits[0].file) }

// TestGenerated plants each generated mutant and runs the tests of its package, and of others
// where none of them fails. It prints which survive, and with -generated=matrix which tests each of them fails: a test of
// which every mutant has another killer may go, if it is the home of no promise.
func TestGenerated(t *testing.T) {
	t.Parallel()
	if *generated == "" {
		t.Skip("not run: each mutant is a build and a run of its package's tests; -generated=hunt runs them")
	}
	of := regexp.MustCompile(*generatedOf)
	killers := matrix{}
	server := sharedServer(t)
	for _, m := range readMutants(t, generatedList) {
		if at := m.edits[0].file + " " + m.name; m.equivalent == "" && of.MatchString(at) {
			began := time.Now()
			killers[at] = hunted(t, m, append([]string{"./" + m.folder()}, strings.Fields(*generatedTests)...), server.at.String())
			if len(killers[at]) == 0 {
				killers[at] = hunted(t, m, others(m.folder()), server.at.String())
			}
			t.Logf("%s: %s, %.0f s", at, killedBy(killers[at]), time.Since(began).Seconds())
		}
	}
	killers.print(t)
}

func killedBy(tests []string) string {
	if len(tests) == 0 {
		return "SURVIVES"
	}
	return fmt.Sprintf("killed by %d, such as %s", len(tests), tests[0])
}

// others are the packages whose tests hunt what those of its own package let through.
func others(pkg string) []string {
	packages := []string{"./internal/httpapi", "./internal/audit", "./cmd/worker"}
	for _, other := range corePackages {
		if other != pkg {
			packages = append(packages, "./"+other)
		}
	}
	return packages
}

// hunted are the tests of these packages that fail under the mutant, each by its innermost
// name.
func hunted(t *testing.T, m mutant, packages []string, database string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	args := []string{"test", "-json", "-count=1", "-timeout=4m", "-vet=off", "-overlay=" + overlay(t, m.edits)}
	if *generated == "hunt" {
		args = append(args, "-failfast")
	}
	command := exec.CommandContext(ctx, "go", append(args, packages...)...)
	command.Dir = ".."
	// Most mutants show in a condition that never holds.
	command.Env = append(os.Environ(), "AWAIT_STALL=10s", "TEST_DATABASE_URL="+database)
	out, err := command.Output()
	if bytes.Contains(out, []byte(`"Action":"build-fail"`)) {
		t.Errorf("%s does not build", m.name)
	}
	if err == nil {
		return nil
	}
	return failed(out)
}

// failed are the tests that failed by the output of go test -json.
func failed(out []byte) []string {
	var names []string
	for scan := bufio.NewScanner(bytes.NewReader(out)); scan.Scan(); {
		var event struct{ Action, Package, Test string }
		if json.Unmarshal(scan.Bytes(), &event) != nil || event.Action != "fail" {
			continue
		}
		name := strings.TrimPrefix(event.Package, "github.com/payonce/payonce/") + " " + event.Test
		outer := slices.ContainsFunc(names, func(other string) bool {
			return strings.HasPrefix(other, name+"/") || event.Test == "" && strings.HasPrefix(other, name)
		})
		if !outer {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// A matrix has the tests that fail under each mutant.
type matrix map[string][]string

// print prints it with its sums: how many mutants of each package are killed, and by how
// many tests, and which tests are the only ones to kill a mutant.
func (m matrix) print(t *testing.T) {
	t.Helper()
	killers, alone := map[string]int{}, map[string]int{}
	mutants, killed := map[string]int{}, map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		tests, pkg := m[name], path.Dir(strings.Fields(name)[0])
		mutants[pkg]++
		killed[pkg] += number(len(tests) > 0)
		for _, test := range tests {
			killers[test]++
			alone[test] += number(len(tests) == 1)
		}
		if len(tests) == 0 {
			t.Errorf("SURVIVES: %s", name)
		}
		if *generated == "matrix" {
			t.Logf("%s\n\t%s", name, strings.Join(tests, "\n\t"))
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(mutants)) {
		t.Logf("%-12s %2d mutants, %2d killed", pkg, mutants[pkg], killed[pkg])
	}
	tests := slices.SortedFunc(maps.Keys(killers), func(a, b string) int {
		return cmp.Or(cmp.Compare(alone[b], alone[a]), cmp.Compare(killers[b], killers[a]), cmp.Compare(a, b))
	})
	for _, test := range tests {
		if *generated == "matrix" {
			t.Logf("%3d killed, %2d of them alone: %s", killers[test], alone[test], test)
		}
	}
}
