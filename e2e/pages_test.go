package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// TestPages_showWhatHappens runs the commands of docs/reference/http.md and of the tutorial in their
// order, and compares what is answered and printed with what the pages show. Ids and times count
// only as such. What is read is read again until it is as it is shown. A deployment stands for the
// tutorial's demo, which TestDemo shows.
func TestPages_showWhatHappens(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 2})
	variables := map[string]string{"API": d.APIs[0].URL(), "KEY": d.Secrets.API}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)\n```\n(?:\n```(?:http)?\n(.*?)```)?")
	for page, least := range map[string]int{"../docs/reference/http.md": 7, "../docs/tutorial/first-charge.md": 12} {
		found := blocks.FindAllStringSubmatch(readFile(t, page), -1)
		for _, block := range found {
			d.happens(t, block[1], block[2], variables)
		}
		if len(found) < least {
			t.Errorf("%s has %d commands", page, len(found))
		}
	}
}

// happens runs a command of a page, and wants what the page shows below it.
func (d *deployment) happens(t *testing.T, command, shown string, variables map[string]string) {
	t.Helper()
	switch {
	case strings.HasPrefix(command, "export "), strings.HasPrefix(command, "go run ./cmd/payonce demo "),
		strings.HasPrefix(command, "go run github.com/"): // generators of clients
	case command == "pkill -STOP -x sandbox":
		must(t, d.Sandbox.Pause())
	case command == "pkill -CONT -x sandbox":
		must(t, d.Sandbox.Resume())
	case command == "kill -KILL $WORKER":
		isHolder := func(p *harness.Process) bool { return strconv.Itoa(p.PID()) == variables["WORKER"] }
		must(t, d.Workers[slices.IndexFunc(d.Workers, isHolder)].Kill())
	case command == "go run ./cmd/payonce audit": // it exits with 1 if it finds something
		d.prints(t, shown, "audit")
	case command == "go run ./cmd/payonce timeline ${CHARGE##*/}":
		timeline := d.prints(t, shown, "timeline", path.Base(variables["CHARGE"]))
		if holder := regexp.MustCompile(`running .*holder=\S+:(\d+)`).FindStringSubmatch(timeline); holder != nil {
			variables["WORKER"] = holder[1]
		}
	default:
		got := d.isAnswered(t, command, variables, shown)
		if location := got.Header.Get("Location"); location != "" && path.Dir(location) == "/v1/charges" {
			variables["CHARGE"] = location
		}
	}
}

// isAnswered runs a command that is answered as a page shows. What is read is read again until it is.
func (d *deployment) isAnswered(t *testing.T, command string, variables map[string]string, shown string) (got answer) {
	t.Helper()
	diff := ""
	if !testrun.Within(testrun.Stall, func() bool {
		got = curl(t, command, variables)
		diff = compare(t, shown, got)
		return diff == "" || strings.Contains(command, " -d ")
	}) || diff != "" {
		t.Fatalf("%s\nis answered (-page +api):\n%s", command, diff)
	}
	must(t, d.client.note(got.Header.Get("Idempotency-Key"), got))
	return got
}

// prints waits until the operator's tool prints the first two columns of every line that a page
// shows, without the time before them, and returns what it printed.
func (d *deployment) prints(t *testing.T, shown string, args ...string) (printed string) {
	t.Helper()
	spaces := regexp.MustCompile(` +`)
	plain := func(text string) string { return spaces.ReplaceAllString(masked(text), " ") }
	lines := regexp.MustCompile(`(?m)^(?:\d{4}-\S+ +)?(\w+:? +\S.*?)  `).FindAllStringSubmatch(masked(shown), -1)
	if len(lines) < 4 {
		t.Fatalf("the page shows %q", lines)
	}
	lacks := func(line []string) bool { return !strings.Contains(plain(printed), plain(line[1])+" ") }
	if !testrun.Within(testrun.Stall, func() bool {
		printed = string(d.payonce(t, args...))
		return !slices.ContainsFunc(lines, lacks)
	}) {
		t.Fatalf("%q prints not what the page shows, as %q:\n%s", args, lines[slices.IndexFunc(lines, lacks)][1], printed)
	}
	return printed
}

// curl runs a command of a page as a shell does, and returns what is answered.
func curl(t *testing.T, command string, variables map[string]string) answer {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl here")
	}
	shell := exec.CommandContext(bounded(t), "sh", "-c", strings.Replace(command, "curl -i localhost:8080", "curl -i $API", 1)+" --silent")
	shell.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range variables {
		shell.Env = append(shell.Env, name+"="+value)
	}
	out, err := shell.Output()
	must(t, err)
	head, body, _ := bytes.Cut(out, []byte("\r\n\r\n"))
	read, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), strings.NewReader("\r\n\r\n"))), nil)
	must(t, err)
	_ = read.Body.Close() // the body is read apart from the head
	return answer{Status: read.StatusCode, Header: read.Header, Body: body}
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

const (
	howToDiff = "../docs/how-to/fraud_check.diff"
	// howToPoints are the call of the fraud service in both cases, and the commit of a rejection.
	howToPoints = "fraud approved/worker/POST /v1/fraud_checks|fraud rejected/worker/POST /v1/fraud_checks|" +
		"fraud rejected/worker/ledger.insertEvent ×3, ledger.insertPosting, fulfillment.moveStock, fulfillment.endReservations, " +
		"inbox.storeRows, inbox.promoteKeys, inbox.endDelivery, inbox.promoteKeys"
)

var howTo = flag.String("how-to", "", "what is done with the diff of docs/how-to beside applying it: build, or all: its tests, in a copy of the tree")

// TestAddAStep looks that the diff of the how-to applies. Otherwise it applies the diff to a copy of the tree. With
// -how-to=build it lays the files that the diff changes over the tree and compiles every package. With -how-to=all
// it builds the copy, runs its tests and injects faults at its crash points. A charge that the step rejects never
// reaches the provider, and its stock returns: TestFraudCheck of the diff.
func TestAddAStep(t *testing.T) {
	t.Parallel()
	diff, err := filepath.Abs(howToDiff)
	must(t, err)
	if *howTo == "" {
		runIn(t, "..", "git", "apply", "--check", diff)
		t.Skip("not run: the changed tree (-how-to=build compiles it, -how-to=all tests it)")
	}
	root, err := filepath.Abs("..")
	must(t, err)
	tree := t.TempDir()
	must(t, errors.Join(os.CopyFS(tree, os.DirFS(root)), os.RemoveAll(filepath.Join(tree, ".git"))))
	runIn(t, tree, "git", "apply", diff)
	switch *howTo {
	case "build":
		changed := map[string]string{}
		for _, match := range regexp.MustCompile(`(?m)^diff --git a/(\S+) b/`).FindAllStringSubmatch(readFile(t, diff), -1) {
			changed[filepath.Join(root, match[1])] = filepath.Join(tree, match[1])
		}
		runIn(t, root, "go", "build", "-overlay="+overlayOf(t, changed), "./...")
	case "all":
		for _, command := range [][]string{
			{"go", "build", "./..."},
			{"go", "test", "-run", "StoredEvents|FraudCheck", "./domain", "./fulfillment", "./internal/audit"},
			{"go", "test", "-run", "Route|Topics|Processors|Contract|Map|Packages|Imports", "./internal/arch", "./cmd/worker", "./internal/httpapi"},
			{"go", "test", "./e2e", "-run", "TestWalk$", "-walk=" + howToPoints},
		} {
			runIn(t, tree, command...)
		}
	default:
		t.Errorf("-how-to=%s: neither build nor all", *howTo)
	}
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
