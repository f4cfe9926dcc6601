package e2e_test

import (
	"bytes"
	"context"
	"errors"
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

// TestDemo runs `payonce demo --keep` as a visitor does. Its checks judge the outcome of every charge and
// refund, while workers are killed and the provider and the shop have faults. Then it takes the commands of
// the README, and the actions of the crash lab; those four that last ten seconds with -every alone. Each says
// what it did, and the audit still holds. It is the longest test, and stands first so that the others run
// beside it.
func TestDemo(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	s := newStage(t)
	command := s.demo(t, "--keep", "--json", "--charges", "30")
	var report bytes.Buffer
	command.Stdout = &report
	must(t, command.Start())
	s.says(t, `(everything stays up)`)
	variables := map[string]string{"API": s.says(t, `^  api\S* +(\S+)$`)}
	commands := regexp.MustCompile(`curl -i (?:[^\n]*\\\n)*[^\n]*`).FindAllString(readFile(t, "../README.md"), -1)
	for _, command := range commands {
		got := curl(t, command, variables)
		if got.Status != http.StatusAccepted && got.Status != http.StatusConflict {
			t.Errorf("%s\nis answered %d %s", command, got.Status, got.Body)
		}
		variables["CHARGE"] = strings.TrimPrefix(got.Header.Get("Location"), "/v1/charges/")
	}
	lab := s.says(t, `^console: (\S+)$`) + "/lab"
	actions := regexp.MustCompile(`name="action" value="(.*?)"`).FindAllStringSubmatch(visit(t, lab), -1)
	outages, before := 0, ""
	for _, action := range actions {
		if strings.Contains(action[1], "provider") {
			if outages++; !*every {
				continue
			}
		}
		do, err := http.NewRequestWithContext(t.Context(), http.MethodPost, lab, strings.NewReader("action="+action[1]))
		must(t, err)
		do.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		_, err = harness.Exchange(http.DefaultClient, do)
		must(t, err)
		did := regexp.MustCompile(`(?s)<ul class="did">.*?</li>`).FindString(visit(t, lab))
		if did == before || strings.Contains(did, "failed") {
			t.Errorf("%s: %s", action[1], did)
		}
		before = did
	}
	env := map[string]string{
		"DATABASE_URL":      s.says(t, `^  database +(\S+)$`),
		"STRIPE_SECRET_KEY": "sk_test_demo", "STRIPE_API_BASE": s.says(t, `^  sandbox +(\S+)$`),
	}
	audit, err := harness.ReadAudit(harness.Run(t.Context(), env, made(t, programs).Payonce, "audit", "--json"))
	if err != nil || !audit.OK || len(commands) < 2 || len(actions) != 9 || outages != 4 {
		t.Errorf("%d commands, %d actions, %d outages; the audit finds %s, %v", len(commands), len(actions), outages, audit.Violated(), err)
	}
	must(t, command.Process.Signal(syscall.SIGINT))
	s.mustBeEmpty(t)
	err = command.Wait()
	if audit, wrong := harness.ReadAudit(report.Bytes(), err); wrong != nil || !audit.OK {
		t.Errorf("the demo ended with %v, printed %s and said\n%s", wrong, report.Bytes(), s.said(t))
	}
}

// visit waits until a page of the console is there, and returns it.
func visit(t *testing.T, page string) (body string) {
	t.Helper()
	testrun.True(t, "the console shows "+page, func() bool {
		body = fetch(t, page)
		return body != ""
	})
	return body
}

// TestDemo_leavesNothing kills a demo while charges flow, and interrupts another one and a guard lab, which is no
// success. One demo runs to its end, as the README's first command does, and so does the lab that removes each guard:
// exactly the checks that its entry names are violated, and none with all guards, nor without those of the second line.
func TestDemo_leavesNothing(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	for name, test := range map[string]struct {
		signal syscall.Signal // none where 0
		says   string
		prints map[string]int // how often
		args   []string
	}{
		"killed":                   {syscall.SIGKILL, `(charges ended)`, nil, nil},
		"interrupted":              {syscall.SIGINT, `(charges ended)`, nil, nil},
		"a guard lab, interrupted": {syscall.SIGINT, `^(without) `, nil, []string{"--break", "idempotency_keys_once"}},
		"it runs to its end":       {0, `(charges ended)`, map[string]int{"every promise held": 1}, []string{"--charges", "30"}},
		"the lab removes each guard": {
			0, `^(without) `, map[string]int{`"as_expected": true`: 11, `"violated": [` + "\n": 9}, []string{"--break", "all", "--json"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.signal != 0 { // what runs to its end keeps the processors busy
				t.Parallel()
			}
			if test.signal != syscall.SIGKILL {
				startsWithEvery(t, "a demo that is killed has the most to leave")
			}
			s := newStage(t)
			command := s.demo(t, test.args...)
			var report bytes.Buffer
			command.Stdout = &report
			must(t, command.Start())
			s.says(t, test.says)
			if running := s.running(t); len(running) < 6 {
				t.Errorf("half-way there run but %q", running)
			}
			if test.signal != 0 {
				must(t, command.Process.Signal(test.signal))
			}
			s.mustBeEmpty(t)
			if err := command.Wait(); (err == nil) != (test.signal == 0) {
				t.Errorf("it ended with %v, and said\n%s", err, s.said(t))
			}
			for text, n := range test.prints {
				if strings.Count(report.String(), text) != n {
					t.Errorf("it did not print %s %d times, but\n%s", text, n, &report)
				}
			}
		})
	}
}

// stage is a place for demos: a folder for temporary files, and programs of its
// own, by whose path their processes are known.
type stage struct {
	root string
	temp string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	// Not t.TempDir: PostgreSQL may run as another user, and a socket's path is
	// short.
	root, err := os.MkdirTemp("", "demo-") //nolint:usetesting // see above
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	s := &stage{root: root, temp: filepath.Join(root, "tmp")}
	must(t, errors.Join(os.Chmod(root, 0o755), os.Mkdir(s.temp, 0o755), os.Chmod(s.temp, 0o777|os.ModeSticky)))
	b, own := made(t, programs), harness.In(root)
	must(t, errors.Join(os.Link(b.API, own.API), os.Link(b.Worker, own.Worker), os.Link(b.Sandbox, own.Sandbox), os.Link(b.Payonce, own.Payonce)))
	return s
}

// demo is the command, outside of any checkout: it uses the programs beside it.
func (s *stage) demo(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{"demo", "--charges", "12", "--seed", "7"}, args...)
	command := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(s.root, "payonce"), args...)
	command.Dir = s.root
	// Its programs get no setting of its environment: with the last one no worker starts.
	command.Env = append(os.Environ(), "TMPDIR="+s.temp, "DATABASE_URL=postgres://nobody@192.0.2.1/never", "WORKER_CONCURRENCY=none")
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
	return readFile(t, filepath.Join(s.root, "stderr"))
}

// says waits until the demo has said a pattern, and returns the pattern's first group.
func (s *stage) says(t *testing.T, pattern string) string {
	t.Helper()
	var found []string
	testrun.Progress(t, "the demo says "+pattern, func() (string, bool) {
		said := s.said(t)
		found = regexp.MustCompile("(?m)" + pattern).FindStringSubmatch(said)
		return said, found != nil
	})
	return found[1]
}

// mustBeEmpty waits until no process is left, and wants no file and no folder left.
func (s *stage) mustBeEmpty(t *testing.T) {
	t.Helper()
	testrun.Progress(t, "no process of the demo is left", func() (string, bool) {
		left := s.running(t)
		return strings.Join(left, "\n"), len(left) == 0
	})
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
