package e2e_test

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	howToDiff = "../docs/how-to/fraud_check.diff"
	// howToPoints are the call of the fraud service in both cases, and the commit of a rejection.
	howToPoints = "fraud approved/worker/POST /v1/fraud_checks|fraud rejected/worker/POST /v1/fraud_checks|" +
		"fraud rejected/worker/ledger.insertEvent ×3, ledger.insertPosting, fulfillment.moveStock, fulfillment.endReservations, " +
		"inbox.storeRows, inbox.promoteKeys, inbox.endDelivery, inbox.promoteKeys"
)

var howTo = flag.String("how-to", "", "what is done with the diff of docs/how-to beside applying it: build, or all: its tests, in a copy of the tree")

// TestAddAStep looks that the diff of the how-to applies. With -how-to=build it lays the files that
// the diff changes over the tree and compiles every package. With -how-to=all it applies the diff to
// a copy of the tree, builds it, runs its tests and injects faults at its crash points. A charge that
// the step rejects never reaches the provider, and its stock returns: TestFraudCheck of the diff.
func TestAddAStep(t *testing.T) {
	t.Parallel()
	diff, err := filepath.Abs(howToDiff)
	must(t, err)
	tree := t.TempDir()
	switch *howTo {
	case "build":
		runIn(t, "..", "go", "build", "-overlay="+patched(t, diff), "./...")
	case "all":
		must(t, errors.Join(os.CopyFS(tree, os.DirFS("..")), os.RemoveAll(filepath.Join(tree, ".git"))))
		for _, command := range [][]string{
			{"git", "apply", diff},
			{"go", "build", "./..."},
			{"go", "test", "-run", "StoredEvents|FraudCheck", "./domain", "./fulfillment", "./internal/audit"},
			{"go", "test", "-run", "Route|Topics|Processors|Contract|Map|Packages|Imports", "./internal/arch", "./cmd/worker", "./internal/httpapi"},
			{"go", "test", "./e2e", "-run", "TestWalk$", "-walk=" + howToPoints},
		} {
			runIn(t, tree, command...)
		}
	default:
		runIn(t, "..", "git", "apply", "--check", diff)
		t.Log("not run: the changed tree (-how-to=build compiles it, -how-to=all tests it)")
	}
}

// patched applies a diff to copies of the files that it names, and returns the overlay of them.
func patched(t *testing.T, diff string) string {
	t.Helper()
	root, err := filepath.Abs("..")
	must(t, err)
	copies, changed := t.TempDir(), map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^diff --git a/(\S+) b/`).FindAllStringSubmatch(readFile(t, diff), -1) {
		name := match[1]
		file := filepath.Join(copies, name)
		changed[filepath.Join(root, name)] = file
		must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		text, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the diff makes it
		}
		must(t, errors.Join(err, os.WriteFile(file, text, 0o600)))
	}
	runIn(t, copies, "git", "apply", diff)
	return overlayOf(t, changed)
}

// overlayOf writes the JSON by which a build reads each file in place of another one.
func overlayOf(t *testing.T, changed map[string]string) string {
	t.Helper()
	list, err := json.Marshal(map[string]any{"Replace": changed})
	must(t, err)
	file := filepath.Join(t.TempDir(), "overlay.json")
	must(t, os.WriteFile(file, list, 0o600))
	return file
}

// runIn runs a command in a tree, which need not be a repository. git does not take one that
// the tree lies in for its own.
func runIn(t *testing.T, tree string, command ...string) {
	t.Helper()
	run := exec.CommandContext(t.Context(), command[0], command[1:]...)
	run.Dir = tree
	run.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(tree))
	if output, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, output)
	}
}
