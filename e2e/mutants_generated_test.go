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
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// generatedList names the mutants that a generator chose, one in a line. A line that ends
// with "| equivalent: …" names one that no test can kill, and why.
const generatedList = "testdata/mutants.txt"

// eachPackage is how many of them each core package has.
const eachPackage = 10

var (
	generated = flag.String("generated", "",
		"what to do with the generated mutants: choose (write the list anew), hunt (until a test fails), matrix (which tests fail); nothing where empty")
	generatedOf    = flag.String("generated-of", "", "regular expression: the lines of the list that are hunted")
	generatedTests = flag.String("generated-tests", "", "packages, separated by spaces, whose tests hunt beside those of the mutant's own package")
)

// A listed mutant is a line of the list.
type listed struct {
	name       string
	equivalent string // why no test can kill it
}

func readGenerated(t *testing.T) []listed {
	t.Helper()
	var list []listed
	for line := range strings.Lines(readFile(t, generatedList)) {
		name, why, _ := strings.Cut(strings.TrimSpace(line), " | equivalent: ")
		if name != "" && !strings.HasPrefix(name, "#") {
			list = append(list, listed{name, why})
		}
	}
	return list
}

// allSites are the sites of all core packages by name.
func allSites(t *testing.T) map[string]site {
	t.Helper()
	all := map[string]site{}
	for _, pkg := range corePackages {
		for _, s := range sites(t, pkg) {
			all[s.name()] = s
		}
	}
	return all
}

// TestGenerated_canBePlanted looks that the list names places that the sources have.
func TestGenerated_canBePlanted(t *testing.T) {
	t.Parallel()
	all, of := allSites(t), map[string]int{}
	for _, m := range readGenerated(t) {
		s, found := all[m.name]
		if !found {
			t.Errorf("the sources have no such place any more: %s\nchoose another one: go test ./e2e -run 'TestGenerated$' -generated=choose", m.name)
			continue
		}
		if m.equivalent == "" {
			of[s.pkg()]++
		}
	}
	for _, pkg := range corePackages {
		if of[pkg] < eachPackage {
			t.Errorf("%s has %d generated mutants that a test can kill, want %d or more", pkg, of[pkg], eachPackage)
		}
	}
}

// TestGenerated plants each generated mutant and runs the tests of its package, and of others
// where none of them fails. It prints which survive, and with -generated=matrix which tests each of them fails: a test of
// which every mutant has another killer may go, if it is the home of no promise.
func TestGenerated(t *testing.T) {
	t.Parallel()
	switch *generated {
	case "":
		t.Skip("not run: each mutant is a build and a run of its package's tests; -generated=hunt runs them")
	case "choose":
		chooseGenerated(t)
		return
	}
	of := regexp.MustCompile(*generatedOf)
	all, m := allSites(t), matrix{}
	server := sharedServer(t)
	for _, l := range readGenerated(t) {
		s, found := all[l.name]
		if !found || l.equivalent != "" || !of.MatchString(l.name) {
			continue
		}
		began := time.Now()
		m[s.name()] = hunted(t, s, append([]string{"./" + s.pkg()}, strings.Fields(*generatedTests)...), server.at.String())
		if len(m[s.name()]) == 0 {
			m[s.name()] = hunted(t, s, others(s.pkg()), server.at.String())
		}
		t.Logf("%s: %s, %.0f s", s.name(), killedBy(m[s.name()]), time.Since(began).Seconds())
	}
	m.print(t)
}

func killedBy(tests []string) string {
	if len(tests) == 0 {
		return "SURVIVES"
	}
	return fmt.Sprintf("killed by %d, such as %s", len(tests), tests[0])
}

// plant lays the mutant over the sources.
func (s site) plant(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", s.file))
	must(t, err)
	text := readFile(t, path)
	if text[s.at:s.at+len(s.old)] != s.old {
		t.Fatalf("%s: %q is not at byte %d", s.name(), s.old, s.at)
	}
	target := filepath.Join(t.TempDir(), filepath.Base(s.file))
	must(t, os.WriteFile(target, []byte(text[:s.at]+s.new+text[s.at+len(s.old):]), 0o600))
	return overlayOf(t, map[string]string{path: target})
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
func hunted(t *testing.T, s site, packages []string, database string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	args := []string{"test", "-json", "-count=1", "-timeout=4m", "-vet=off", "-overlay=" + s.plant(t)}
	if *generated == "hunt" {
		args = append(args, "-failfast")
	}
	command := exec.CommandContext(ctx, "go", append(args, packages...)...)
	command.Dir = ".."
	// Most mutants show in a condition that never holds.
	command.Env = append(os.Environ(), "AWAIT_STALL=10s", "TEST_DATABASE_URL="+database)
	out, err := command.Output()
	if bytes.Contains(out, []byte(`"Action":"build-fail"`)) {
		t.Errorf("%s does not build", s.name())
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
	type sum struct{ mutants, killed, alone int }
	of := map[string]sum{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		tests, pkg := m[name], filepath.Dir(strings.SplitN(name, " | ", 2)[0])
		s := of[pkg]
		s.mutants++
		for _, test := range tests {
			killers[test]++
		}
		switch len(tests) {
		case 0:
			t.Errorf("SURVIVES: %s", name)
		case 1:
			alone[tests[0]]++
			s.alone++
			fallthrough
		default:
			s.killed++
		}
		of[pkg] = s
		if *generated == "matrix" {
			t.Logf("%s\n\t%s", name, strings.Join(tests, "\n\t"))
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(of)) {
		t.Logf("%-12s %2d mutants, %2d killed, %2d of them by one test alone", pkg, of[pkg].mutants, of[pkg].killed, of[pkg].alone)
	}
	if *generated == "matrix" {
		tests := slices.SortedFunc(maps.Keys(killers), func(a, b string) int {
			return cmp.Or(cmp.Compare(alone[b], alone[a]), cmp.Compare(killers[b], killers[a]), cmp.Compare(a, b))
		})
		for _, test := range tests {
			t.Logf("%3d killed, %2d of them alone: %s", killers[test], alone[test], test)
		}
	}
}

// chooseGenerated keeps the lines whose place is still there, and fills each package up
// with sites by their rank that build.
func chooseGenerated(t *testing.T) {
	t.Helper()
	kept := map[string]listed{}
	for _, l := range readGenerated(t) {
		kept[l.name] = l
	}
	var b strings.Builder
	b.WriteString("# file | within | change | which of several; written by: go test ./e2e -run 'TestGenerated$' -generated=choose\n")
	for _, pkg := range corePackages {
		all := sites(t, pkg)
		n, lines := 0, []string{}
		for _, s := range all {
			if l, ok := kept[s.name()]; ok && l.equivalent != "" {
				lines = append(lines, l.name+" | equivalent: "+l.equivalent)
			} else if ok {
				lines = append(lines, l.name)
				n++
			}
		}
		for _, s := range all {
			if _, ok := kept[s.name()]; n < eachPackage && !ok && builds(t, s) {
				lines = append(lines, s.name())
				n++
			}
		}
		slices.Sort(lines)
		fmt.Fprintf(&b, "%s\n", strings.Join(lines, "\n"))
		t.Logf("%s: %d of %d sites", pkg, len(lines), len(all))
	}
	must(t, os.WriteFile(generatedList, []byte(b.String()), 0o644)) //nolint:gosec // part of the sources
}

// builds reports whether the package builds with the mutant.
func builds(t *testing.T, s site) bool {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "build", "-overlay="+s.plant(t), "./"+s.pkg())
	command.Dir = ".."
	return command.Run() == nil
}
