package e2e_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/testrun"
)

// example is a command of the manual with the answer that it shows.
type example struct{ command, answer string }

// TestManual_examples_areAnsweredAsShown runs the commands of docs/reference/http.md against programs that run, in
// their order, and compares the answers with those of the page. Ids and times
// count only as such. What is read is read again until it is as it is shown.
func TestManual_examples_areAnsweredAsShown(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1})
	variables := map[string]string{"$API": d.APIs[0].URL(), "$KEY": d.Secrets.API}
	examples := readExamples(t)
	if len(examples) < 6 {
		t.Fatalf("the manual has %d examples", len(examples))
	}
	for _, e := range examples {
		r := readCurl(t, e.command, variables)
		got := d.isAnswered(t, e.command, r, e.answer)
		if variables["$CHARGE"] == "" {
			variables["$CHARGE"] = got.Header.Get("Location")
		}
	}
}

// isAnswered sends the request of a command, which must be answered as a page shows. What is
// read is read again until it is.
func (d *deployment) isAnswered(t *testing.T, command string, r request, shown string) (got answer) {
	t.Helper()
	diff := ""
	if !testrun.Within(testrun.Stall, func() bool {
		got = d.do(t, r)
		diff = compare(t, shown, got)
		return diff == "" || r.method != http.MethodGet
	}) || diff != "" {
		t.Fatalf("%s\nis answered (-page +api):\n%s", command, diff)
	}
	if err := d.client.note(r.key, got); err != nil {
		t.Error(err)
	}
	return got
}

// readExamples reads every command of the manual with the answer below it.
func readExamples(t *testing.T) (all []example) {
	t.Helper()
	page := readFile(t, "../docs/reference/http.md")
	blocks := regexp.MustCompile("(?s)```sh\n(curl .*?)```\n\n```http\n(.*?)```").FindAllStringSubmatch(page, -1)
	for _, block := range blocks {
		all = append(all, example{block[1], block[2]})
	}
	if commands := strings.Count(page, "```sh\ncurl "); commands != len(all) {
		t.Errorf("%d commands, %d with an answer below", commands, len(all))
	}
	return all
}

// readCurl reads what a command asks for, as a shell and curl would.
func readCurl(t *testing.T, command string, variables map[string]string) request {
	t.Helper()
	command = strings.ReplaceAll(command, "\\\n", " ")
	r := request{method: http.MethodGet, header: http.Header{}}
	words := regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`).FindAllString(command, -1)
	for i := 1; i < len(words); i++ {
		switch words[i] {
		case "-i":
		case "-H":
			i++
			name, value, _ := strings.Cut(word(words[i], variables), ": ")
			if r.header[name] = []string{value}; name == "Idempotency-Key" {
				r.key = value
			}
		case "-d":
			i++
			r.method, r.body = http.MethodPost, []byte(word(words[i], variables))
		default:
			path, found := strings.CutPrefix(words[i], "$API")
			if !found {
				path, found = strings.CutPrefix(words[i], "localhost:8080")
			}
			if !found {
				t.Fatalf("what is %s in\n%s", words[i], command)
			}
			r.path = word(path, variables)
		}
	}
	return r
}

// word is a word of a command without its quotes. In single ones a $ is a $.
func word(w string, variables map[string]string) string {
	if strings.HasPrefix(w, "'") {
		return strings.Trim(w, "'")
	}
	for name, value := range variables {
		w = strings.ReplaceAll(w, name, value)
	}
	return strings.Trim(w, `"`)
}

// compare holds an answer to what the manual shows of it: the status, the headers
// that are shown, and the whole body.
func compare(t *testing.T, shown string, got answer) string {
	t.Helper()
	head, body, _ := strings.Cut(shown, "\n\n")
	lines := strings.Split(head, "\n")
	written := []string{fmt.Sprintf("HTTP/1.1 %d %s", got.Status, http.StatusText(got.Status))}
	for _, line := range lines[1:] {
		name, _, _ := strings.Cut(line, ": ")
		written = append(written, name+": "+got.Header.Get(name))
	}
	return cmp.Diff(masked(strings.Join(lines, "\n")), masked(strings.Join(written, "\n"))) +
		cmp.Diff(decoded(t, masked(body)), decoded(t, masked(string(got.Body))))
}

// masked replaces what differs from run to run by what it is.
func masked(text string) string {
	for _, m := range []struct{ pattern, is string }{
		{`ch_[0-9a-f]+…?`, "a charge"},
		{`re_[0-9a-f]+…?`, "a refund"},
		{`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`, "a UUID"},
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "a time"},
		{`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT`, "a date"},
	} {
		text = regexp.MustCompile(m.pattern).ReplaceAllString(text, m.is)
	}
	return text
}

func decoded(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// howTos are the diffs of the how-to, with their tests in domain, fulfillment and
// internal/audit, and their crash points.
var howTos = []struct{ diff, tests, points string }{
	// The call of the fraud service in both cases, and the commit of a rejection.
	{"../docs/how-to/fraud_check.diff", "FraudCheck", "fraud approved/worker/POST /v1/fraud_checks|fraud rejected/worker/POST /v1/fraud_checks|" +
		"fraud rejected/worker/ledger.insertEvent ×3, ledger.insertPosting, fulfillment.moveStock, fulfillment.endReservations, " +
		"inbox.storeRows, inbox.promoteKeys, inbox.endDelivery, inbox.promoteKeys"},
}

var howTo = flag.String("how-to", "", "what is done with the diffs of docs/how-to: build with each, or all: their tests, in a copy of the tree")

// TestAddAStep_diffsBuild lays the files that a diff changes over the tree, and compiles every package.
func TestAddAStep_diffsBuild(t *testing.T) {
	t.Parallel()
	if *howTo != "build" {
		t.Skip("not run: it compiles a changed tree; -how-to=build runs it")
	}
	for _, h := range howTos {
		runIn(t, "..", "go", "build", "-overlay="+patched(t, h.diff), "./...")
	}
}

// patched applies a diff to copies of the files that it names, and returns the overlay of them.
func patched(t *testing.T, diff string) string {
	t.Helper()
	diff, err := filepath.Abs(diff)
	must(t, err)
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

// TestAddAStep applies each diff of the how-to to a copy of the tree, builds it, runs its
// tests and injects faults at its crash points. A charge that the step rejects never
// reaches the provider, and its stock returns: TestFraudCheck of the diff.
func TestAddAStep(t *testing.T) {
	t.Parallel()
	if *howTo != "all" {
		t.Skip("not run: it builds the programs of a changed tree; -how-to=all runs it")
	}
	tree := copyOfTree(t)
	for _, h := range howTos {
		diff, err := filepath.Abs(h.diff)
		must(t, err)
		for _, command := range [][]string{
			{"git", "apply", diff},
			{"go", "build", "./..."},
			{"go", "test", "-run", "StoredEvents|" + h.tests, "./domain", "./fulfillment", "./internal/audit"},
			{"go", "test", "-run", "Route|Topics|Processors|Contract|Map|Packages|Imports", "./internal/arch", "./cmd/worker", "./internal/httpapi"},
			{"go", "test", "./e2e", "-run", "TestWalk$", "-walk=" + h.points},
			{"git", "apply", "-R", diff},
		} {
			runIn(t, tree, command...)
		}
	}
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

// copyOfTree copies the module without its repository.
func copyOfTree(t *testing.T) string {
	t.Helper()
	tree := t.TempDir()
	must(t, errors.Join(os.CopyFS(tree, os.DirFS("..")), os.RemoveAll(filepath.Join(tree, ".git"))))
	return tree
}

// TestAddAStep_diffsApply: each diff applies to this tree.
func TestAddAStep_diffsApply(t *testing.T) {
	t.Parallel()
	for _, h := range howTos {
		runIn(t, "..", "git", "apply", "--check", strings.TrimPrefix(h.diff, "../"))
	}
}
