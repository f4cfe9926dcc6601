package e2e_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/validate"
)

// TestDemo runs `payonce demo` as a visitor does.
func TestDemo(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	t.Run("it ends with 0 and a sound audit, and leaves nothing", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		var stdout bytes.Buffer
		command := s.demo(t, "--charges", "12", "--seed", "7", "--json")
		command.Stdout = &stdout
		if err := command.Run(); err != nil {
			t.Errorf("the demo ended with %v and said\n%s", err, s.stderr.String())
		}
		if audit, err := validate.ReadAudit(stdout.Bytes()); err != nil || !audit.OK {
			t.Errorf("the demo printed %v: %s", err, stdout.String())
		}
		s.mustBeEmpty(t)
	})
	t.Run("killed or interrupted half-way it leaves nothing running", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		if err := s.endHalfWay(t, syscall.SIGKILL); err == nil {
			t.Error("a killed demo ended with 0")
		}
		// The folder of a killed demo stays until the next one starts.
		if err := s.endHalfWay(t, syscall.SIGINT); err == nil {
			t.Error("an interrupted demo ended with 0")
		}
		s.mustBeEmpty(t)
	})
}

// stage is a place for demos: a folder for temporary files, and programs of its
// own, by whose path their processes are known.
type stage struct {
	root   string
	temp   string
	stderr *output // of the last demo
}

func newStage(t *testing.T) *stage {
	t.Helper()
	b := binaries(t)
	// Not t.TempDir: PostgreSQL may run as another user, and a socket's path is
	// short.
	root, err := os.MkdirTemp(filepath.Dir(b.API), "demo-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	s := &stage{root: root, temp: filepath.Join(root, "tmp")}
	for _, err := range []error{
		os.Chmod(root, 0o755), // PostgreSQL may run as another user
		os.Mkdir(s.temp, 0o755),
		os.Chmod(s.temp, 0o777|os.ModeSticky),
		os.Link(b.API, filepath.Join(root, "api")),
		os.Link(b.Worker, filepath.Join(root, "worker")),
		os.Link(b.Sandbox, filepath.Join(root, "sandbox")),
		os.Link(b.Payonce, filepath.Join(root, "payonce")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// demo is the command, outside of any checkout: it uses the programs beside it.
func (s *stage) demo(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(s.root, "payonce"), append([]string{"demo"}, args...)...)
	command.Dir = s.root
	command.Env = append(os.Environ(), "TMPDIR="+s.temp, "DATABASE_URL=postgres://nobody@192.0.2.1/never")
	s.stderr = &output{}
	command.Stderr = s.stderr
	// Whatever inherits stderr must not keep the test waiting.
	command.WaitDelay = time.Second
	t.Cleanup(func() {
		if command.Process != nil {
			_ = command.Process.Kill()
		}
	})
	return command
}

// output is a buffer that is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// endHalfWay sends a demo a signal when charges flow, and waits until nothing of
// it runs. It returns how the demo ended.
func (s *stage) endHalfWay(t *testing.T, signal syscall.Signal) error {
	t.Helper()
	command := s.demo(t, "--charges", "12", "--seed", "7")
	command.Stdout = io.Discard
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	await.True(t, "the demo says that charges have ended", func() bool {
		return strings.Contains(s.stderr.String(), "charges ended")
	})
	if running := s.running(t); len(running) < 6 {
		t.Errorf("half-way there run but %q", running)
	}
	if err := command.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	err := await.Receive(t, "the demo ends after "+signal.String(), ended)
	s.mustBeQuiet(t)
	return err
}

func (s *stage) mustBeQuiet(t *testing.T) {
	t.Helper()
	await.Progress(t, "no process of the demo is left", func() (string, bool) {
		left := s.running(t)
		return strings.Join(left, "\n"), len(left) == 0
	})
}

// mustBeEmpty wants no process, no file and no folder left.
func (s *stage) mustBeEmpty(t *testing.T) {
	t.Helper()
	s.mustBeQuiet(t)
	left, err := os.ReadDir(s.temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("%s is left", entry.Name())
	}
}

// running are the command lines of the processes that have to do with the stage:
// its programs, and servers with a folder in it.
func (s *stage) running(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ps", "-A", "-o", "args=").Output()
	if err != nil {
		t.Skipf("not run: processes cannot be listed: %v", err)
	}
	var running []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, s.root) {
			running = append(running, strings.TrimSpace(line))
		}
	}
	return running
}
