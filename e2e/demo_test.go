package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// TestDemo_keptUp sends the commands of the README to a demo that is kept up, and takes each action of the
// crash lab. Each says what it did, and the audit still holds. When the demo ends, nothing of the
// guard lab is left. It is the longest test, and stands first so that the others run beside it.
func TestDemo_keptUp(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	s := newStage(t)
	command := s.demo(t, "--keep")
	terminal, err := command.StdinPipe()
	must(t, errors.Join(err, command.Start()))
	said := func(pattern string) string {
		var found []string
		testrun.Progress(t, "the demo says "+pattern, func() (string, bool) {
			found = regexp.MustCompile("(?m)" + pattern).FindStringSubmatch(s.said(t))
			return s.said(t), found != nil
		})
		return found[1]
	}
	actions := strings.Split(said(`something, type one of: (.+)$`), ", ")
	client, variables := newClient([]string{said(`^  api\S* +(\S+)$`)}, said(`^  API key +(\S+)$`)), map[string]string{}
	commands := regexp.MustCompile(`curl -i (?:[^\n]*\\\n)*[^\n]*`).FindAllString(readFile(t, "../README.md"), -1)
	for _, command := range commands {
		got, err := client.do(t.Context(), readCurl(t, command, variables))
		if err != nil || got.Status != http.StatusAccepted && got.Status != http.StatusConflict {
			t.Errorf("%s\nis answered %d %s, %v", command, got.Status, got.Body, err)
		}
		variables["$CHARGE"] = strings.TrimPrefix(got.Header.Get("Location"), "/v1/charges/")
	}
	do := func(action, says string) {
		_, err := fmt.Fprintln(terminal, action)
		must(t, err)
		if got := said(`^` + action + `: (.+)$`); !regexp.MustCompile(says).MatchString(got) {
			t.Errorf("%s: %s", action, got)
		}
	}
	for _, action := range actions {
		do(action, map[bool]string{true: "^10 requests.* 1 different answer", false: "^([^f]|fo)"}[action == "send-10"])
	}
	do("no-such-action", "^failed")
	env := map[string]string{"DATABASE_URL": said(`^  database +(\S+)$`), "STRIPE_SECRET_KEY": "sk_test_demo", "STRIPE_API_BASE": said(`^  sandbox +(\S+)$`)}
	audit, err := harness.ReadAudit(harness.Run(t.Context(), env, binaries(t).Payonce, "audit", "--json"))
	if err != nil || !audit.OK || len(commands) < 2 || len(actions) != 10 {
		t.Errorf("%d commands and %d actions; the audit finds %s, %v", len(commands), len(actions), audit.Violated(), err)
	}
	_, err = fmt.Fprintln(terminal, "idempotency_keys_once")
	must(t, err)
	said(`^idempotency_keys_once: (without .+)$`)
	must(t, command.Process.Signal(syscall.SIGINT))
	s.mustBeEmpty(t)
}

// TestDemo runs `payonce demo` as a visitor does. Its checks judge the outcome of every charge
// and refund, while workers are killed and the provider and the shop have faults.
func TestDemo(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	s := newStage(t)
	stdout, err := s.demo(t, "--json", "--charges", "30").Output()
	if err != nil {
		t.Errorf("the demo ended with %v and said\n%s", err, s.said(t))
	}
	if audit, err := harness.ReadAudit(stdout, err); err != nil || !audit.OK {
		t.Errorf("the demo printed %v: %s", err, stdout)
	}
	s.mustBeEmpty(t)
}

// TestDemo_endedHalfWay_leavesNothing kills a demo, and interrupts another one.
func TestDemo_endedHalfWay_leavesNothing(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	s := newStage(t)
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		if err := s.endHalfWay(t, signal); err == nil {
			t.Errorf("a demo that got %s ended with 0", signal)
		}
	}
	s.mustBeEmpty(t)
}

// TestGuards removes each guard of the lab from a payonce of its own: exactly the checks that
// its entry names are violated, and with all guards none is.
func TestGuards(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	if !*every {
		t.Skip("not run: each guard, of which TestDemo_keptUp removes one (-every)")
	}
	s := newStage(t)
	stdout, err := s.demo(t, "--break", "all", "--json").Output()
	if err != nil { // also where other checks are violated
		t.Errorf("the lab ended with %v and said\n%s", err, s.said(t))
	}
	var report struct {
		Guards []struct {
			Guard     string
			Violated  []json.RawMessage
			Timelines []struct{ Entries []json.RawMessage }
		}
	}
	if err := json.Unmarshal(stdout, &report); err != nil {
		t.Fatalf("the lab printed %v: %s", err, stdout)
	}
	needed := 0
	for _, g := range report.Guards {
		if len(g.Violated) > 0 {
			needed++
		}
		if len(g.Timelines) == 0 || len(g.Timelines[0].Entries) == 0 {
			t.Errorf("without %s there is no timeline", g.Guard)
		}
	}
	if needed < 8 || needed != len(report.Guards)-2 {
		t.Errorf("%d of %d guards are needed", needed, len(report.Guards))
	}
	s.mustBeEmpty(t)
}

// stage is a place for demos: a folder for temporary files, and programs of its
// own, by whose path their processes are known.
type stage struct {
	root string
	temp string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	built := filepath.Dir(binaries(t).API)
	// Not t.TempDir: PostgreSQL may run as another user, and a socket's path is
	// short.
	root, err := os.MkdirTemp(built, "demo-") //nolint:usetesting // see above
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	s := &stage{root: root, temp: filepath.Join(root, "tmp")}
	errs := []error{os.Chmod(root, 0o755), os.Mkdir(s.temp, 0o755), os.Chmod(s.temp, 0o777|os.ModeSticky)}
	for _, name := range []string{"api", "worker", "sandbox", "payonce"} {
		errs = append(errs, os.Link(filepath.Join(built, name), filepath.Join(root, name)))
	}
	for _, err := range errs {
		must(t, err)
	}
	return s
}

// demo is the command, outside of any checkout: it uses the programs beside it.
func (s *stage) demo(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{"demo", "--charges", "12", "--seed", "7"}, args...)
	command := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(s.root, "payonce"), args...)
	command.Dir = s.root
	command.Env = append(os.Environ(), "TMPDIR="+s.temp, "DATABASE_URL=postgres://nobody@192.0.2.1/never")
	stderr, err := os.Create(filepath.Join(s.root, "stderr"))
	must(t, err)
	command.Stderr = stderr
	// Whatever inherits stdout must not keep the test waiting.
	command.WaitDelay = time.Second
	t.Cleanup(func() {
		_ = stderr.Close()
		if command.Process != nil {
			_ = command.Process.Kill()
		}
	})
	return command
}

// said is what the last demo has written to stderr.
func (s *stage) said(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.root, "stderr"))
	must(t, err)
	return string(text)
}

// endHalfWay sends a demo a signal when charges flow, and waits until nothing of
// it runs. It returns how the demo ended.
func (s *stage) endHalfWay(t *testing.T, signal syscall.Signal) error {
	t.Helper()
	command := s.demo(t)
	must(t, command.Start())
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	testrun.True(t, "the demo says that charges have ended", func() bool { return strings.Contains(s.said(t), "charges ended") })
	if running := s.running(t); len(running) < 6 {
		t.Errorf("half-way there run but %q", running)
	}
	must(t, command.Process.Signal(signal))
	err := testrun.Receive(t, "the demo ends after "+signal.String(), ended)
	s.mustBeQuiet(t)
	return err
}

func (s *stage) mustBeQuiet(t *testing.T) {
	t.Helper()
	testrun.Progress(t, "no process of the demo is left", func() (string, bool) {
		left := s.running(t)
		return strings.Join(left, "\n"), len(left) == 0
	})
}

// mustBeEmpty wants no process, no file and no folder left.
func (s *stage) mustBeEmpty(t *testing.T) {
	t.Helper()
	s.mustBeQuiet(t)
	if left, err := os.ReadDir(s.temp); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// running are the command lines of the processes that have to do with the stage:
// its programs, and servers with a folder in it.
func (s *stage) running(t *testing.T) (running []string) {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ps", "-A", "-o", "args=").Output()
	if err != nil {
		t.Skipf("not run: processes cannot be listed: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, s.root) {
			running = append(running, strings.TrimSpace(line))
		}
	}
	return running
}
