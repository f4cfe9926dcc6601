package e2e_test

import (
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	howToPage = "../docs/how-to/add-a-step.md"
	howToDiff = "../docs/how-to/fraud_check.diff"
)

// newPoints are the crash points of the step: the call of the fraud service in both cases,
// and the commit of a rejection.
const newPoints = "fraud approved/worker/POST /v1/fraud_checks|fraud rejected/worker/POST /v1/fraud_checks|" +
	"fraud rejected/worker/insert ledger_events ×3, insert ledger_postings, update stock, update reservations, insert outbox, ended: insert inbox"

var howTo = flag.Bool("how-to", false, "apply the diff of docs/how-to to a copy of the tree, and test it")

// TestAddAStep applies the diff of the how-to to a copy of the tree, builds it, runs the
// tests of the step and strikes a worker at the step's crash points. A rejected charge
// never reaches the provider, and its stock returns: TestFraudCheck of the diff.
func TestAddAStep(t *testing.T) {
	t.Parallel()
	if !*howTo {
		t.Skip("not run: it builds the programs of a changed tree; -how-to runs it")
	}
	diff, err := filepath.Abs(howToDiff)
	if err != nil {
		t.Fatal(err)
	}
	tree := copyOfTree(t)
	for _, command := range [][]string{
		{"git", "apply", diff},
		{"go", "build", "./..."},
		{"go", "test", "-run", "FraudCheck|StoredEvents|EventTypes", "./domain", "./fulfillment"},
		{"go", "test", "-run", "Route|Contract|Map|Packages|Imports", "./internal/arch", "./cmd/worker", "./internal/httpapi"},
		{"go", "test", "./e2e", "-run", "TestWalk$", "-walk=" + newPoints},
	} {
		run := exec.CommandContext(t.Context(), command[0], command[1:]...)
		run.Dir = tree
		run.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(tree))
		if output, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, output)
		}
	}
}

// copyOfTree copies the module without its repository.
func copyOfTree(t *testing.T) string {
	t.Helper()
	tree := t.TempDir()
	root := os.DirFS("..")
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return err
		case entry.IsDir() && entry.Name() == ".git":
			return fs.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(tree, path), 0o755)
		case !entry.Type().IsRegular():
			return nil
		}
		data, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(tree, path), data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestAddAStep_pageShowsTheDiff: every line that the page shows as a part of the diff is in it.
func TestAddAStep_pageShowsTheDiff(t *testing.T) {
	t.Parallel()
	page, diff := readFile(t, howToPage), readFile(t, howToDiff)
	blocks := strings.Split(page, "```diff\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("the page shows no part of the diff")
	}
	for _, block := range blocks {
		part, _, _ := strings.Cut(block, "```")
		if !strings.Contains(diff, part) {
			t.Errorf("this part is not in the diff:\n%s", part)
		}
	}
}
