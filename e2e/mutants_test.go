package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// A list has a bug in each paragraph: its name as a reviewer would say it, the walk or the test that
// catches it, what that says, and the lines that change ("-" and "+") in files ("---"), between lines
// that stay. The generated ones were chosen by a generator in the core packages: a turned comparison, a
// call that is left out, a word of a statement. Their names say no more than that, and any test may catch
// them. "equivalent" says why none can.
const (
	plantedList   = "testdata/planted.txt"
	generatedList = "testdata/generated.txt"
)

// A mutant is payonce with one bug planted. The bug is laid over the sources of
// one build (go build -overlay); the tree itself never holds it, nor a switch
// that would bring it back.
type mutant struct {
	name  string
	edits []edit

	walk      string // an address of the walk
	pkg, test string // a test of a package, "TestX" or "TestX/a part of it"
	says      string // which invariant is violated, or what the test says

	equivalent string // why no test can kill it
}

// edit is one change of one file. What it replaces must be there exactly once.
type edit struct{ file, old, new string }

// readMutants reads a list.
func readMutants(t *testing.T, list string) (all []mutant) {
	t.Helper()
	for paragraph := range strings.SplitSeq(strings.TrimSpace(readFile(t, list)), "\n\n") {
		lines := strings.Split(paragraph, "\n")
		m := mutant{name: lines[0]}
		for _, line := range lines[1:] {
			switch word, rest, _ := strings.Cut(line, " "); word {
			case "walk":
				m.walk = rest
			case "test":
				m.pkg, m.test, _ = strings.Cut(rest, " ")
			case "says":
				m.says = rest
			case "equivalent":
				m.equivalent = rest
			case "---":
				m.edits = append(m.edits, edit{file: rest})
			default:
				e := &m.edits[len(m.edits)-1]
				if line[0] != '+' {
					e.old += line[1:] + "\n"
				}
				if line[0] != '-' {
					e.new += line[1:] + "\n"
				}
			}
		}
		all = append(all, m)
	}
	return all
}

// hunt returns how the mutant was caught: the point or test, and the invariant; "" for one that was
// not caught.
func (m mutant) hunt(t *testing.T) string {
	t.Helper()
	switch {
	case m.walk != "":
		return byWalk(t, overlay(t, m.edits), m.walk, m.says)
	case m.test != "":
		return byTest(t, overlay(t, m.edits), m.pkg, m.test, m.says)
	}
	if by := m.byPackages(t, "./"+path.Dir(m.edits[0].file)); by != "" {
		return by
	}
	return m.byPackages(t, corePackages...)
}

var (
	mutantsWhat = flag.String("mutants", "", "mutants to hunt: all that are planted, a number of them by -seed, or generated; none where empty")
	mutantsOf   = flag.String("mutants-of", "",
		"files, separated by spaces: a number of mutants is drawn from those that are planted in one of them, if there are any")
)

// TestMutants shows that the other tests can fail: each planted bug must be caught at the point and by
// the invariant that the list names, each generated one by any test.
func TestMutants(t *testing.T) {
	t.Parallel()
	if *mutantsWhat == "" {
		t.Skip("not run: each mutant is a build of its own; -mutants=all hunts all, -mutants=3 hunts three")
	}
	hunted := readMutants(t, plantedList)
	switch *mutantsWhat {
	case "all":
	case "generated":
		hunted = slices.DeleteFunc(readMutants(t, generatedList), func(m mutant) bool { return m.equivalent != "" })
	default:
		n, err := strconv.Atoi(*mutantsWhat)
		if err != nil || n < 1 || n > len(hunted) {
			t.Fatalf("-mutants=%s: neither all nor a number up to %d", *mutantsWhat, len(hunted))
		}
		if planted := plantedIn(hunted, strings.Fields(*mutantsOf)); len(planted) > 0 {
			hunted, n = planted, min(n, len(planted))
		}
		seed := testrun.Seed(t)
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(hunted), func(i, j int) { hunted[i], hunted[j] = hunted[j], hunted[i] })
		t.Logf("not run: %d of %d mutants; -seed=%d", len(hunted)-n, len(hunted), seed)
		hunted = hunted[:n]
	}
	caught := 0
	for _, m := range hunted {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			by := m.hunt(t)
			if by == "" {
				t.Fatalf("not caught: %s", m.name)
			}
			caught++
			t.Logf("caught by %s", by)
		})
	}
	t.Logf("%d of %d mutants caught", caught, len(hunted))
}

// plantedIn are the mutants that change one of the files.
func plantedIn(all []mutant, files []string) []mutant {
	return slices.DeleteFunc(slices.Clone(all), func(m mutant) bool {
		return !slices.ContainsFunc(m.edits, func(e edit) bool { return slices.Contains(files, e.file) })
	})
}

// overlay writes the changed files, and the JSON by which a build reads them in place of the tree's own.
func overlay(t *testing.T, edits []edit) string {
	t.Helper()
	root, err := filepath.Abs("..")
	must(t, err)
	dir := t.TempDir()
	changed := map[string]string{}
	for _, e := range edits {
		at := filepath.Join(root, filepath.FromSlash(e.file))
		source, again := changed[at]
		if !again {
			source = at
		}
		text := readFile(t, source)
		if n := strings.Count(text, e.old); n != 1 {
			t.Fatalf("%s holds %d times, not once, what the mutant replaces:\n%s", e.file, n, e.old)
		}
		target := filepath.Join(dir, strings.ReplaceAll(e.file, "/", "_"))
		must(t, os.WriteFile(target, []byte(strings.Replace(text, e.old, e.new, 1)), 0o600))
		changed[at] = target
	}
	return overlayOf(t, changed)
}

// byTest hunts with a test: under the mutant it must fail, itself, and say why.
func byTest(t *testing.T, overlay, pkg, test, says string) string {
	t.Helper()
	name := strings.ReplaceAll(test, " ", "_")
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(name), "/", "$/^") + "$"
	out, failed := goTest(t, overlay, "-timeout=9m", "-run", pattern, pkg)
	if !failed || !bytes.Contains(out, []byte("--- FAIL: "+name)) || !bytes.Contains(out, []byte(says)) {
		t.Logf("%s %s printed:\n%s", pkg, test, out)
		return ""
	}
	return fmt.Sprintf("%s %s: %s", pkg, test, says)
}

// goTest runs tests of the tree under an overlay. Most bugs show in a condition that never holds.
func goTest(t *testing.T, overlay string, args ...string) (out []byte, failed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-overlay=" + overlay}, args...)...)
	command.Dir = ".."
	command.Env = append(os.Environ(), "AWAIT_STALL=15s", "TEST_DATABASE_URL="+made(t, shared).at.String())
	out, err := command.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")) {
		t.Fatalf("the mutant does not build:\n%s", out)
	}
	return out, err != nil
}

// byWalk hunts with a run of the crash walk, at the address that replays it. The promise that is named
// must be violated there, or already with nothing armed.
func byWalk(t *testing.T, overlay, address, promise string) string {
	t.Helper()
	_, rest, _ := strings.Cut(address, "/")
	program, _, _ := strings.Cut(rest, "/")
	violations := hunt(t, mutated(t, program, overlay), address)
	i := slices.IndexFunc(violations, func(v string) bool { return strings.Contains(v, promise) })
	if i < 0 {
		t.Logf("%s: violated were %q", address, violations)
		return ""
	}
	return address + ": " + violations[i]
}

// mutated are the programs, with the bug in the api or the worker.
func mutated(t *testing.T, program, overlay string) harness.Binaries {
	t.Helper()
	built := filepath.Join(t.TempDir(), program)
	runIn(t, "..", "go", "build", "-overlay="+overlay, "-o", built, "./cmd/"+program)
	b := made(t, programs)
	if program == "api" {
		b.API = built
	} else {
		b.Worker = built
	}
	return b
}

// corePackages are those that mutants are generated in, and others whose tests hunt what slips through
// those of its own package.
var corePackages = strings.Fields(`./domain ./ledger ./idempotency ./inbox ./outbox ./groupcommit ./intake ./fulfillment
	./internal/httpapi ./internal/audit ./cmd/worker ./ledger/books ./inbox/deadletter ./outbox/doorbell`)

// byPackages hunts with all tests of packages, and returns those that fail.
func (m mutant) byPackages(t *testing.T, packages ...string) string {
	t.Helper()
	out, failed := goTest(t, overlay(t, m.edits), append([]string{"-timeout=4m", "-vet=off", "-failfast"}, packages...)...)
	if !failed {
		return ""
	}
	return strings.Join(regexp.MustCompile(`(?m)^ *(?:--- FAIL: |FAIL\t)\S+`).FindAllString(string(out), -1), "; ")
}

// TestMutants_canBePlanted looks that the tree still holds what each of them
// replaces: most runs plant but a few.
func TestMutants_canBePlanted(t *testing.T) {
	t.Parallel()
	generated := readMutants(t, generatedList)
	if len(generated) < 80 {
		t.Errorf("%s has %d mutants, want 80 or more", generatedList, len(generated))
	}
	for _, m := range append(readMutants(t, plantedList), generated...) {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			overlay(t, m.edits)
		})
	}
}
