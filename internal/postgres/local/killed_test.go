package local_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// parentVariable makes TestKilledParent the parent that is killed.
const parentVariable = "PAYONCE_LOCAL_TEST_PARENT"

func TestKilledParent(t *testing.T) {
	pgtest.Long(t, "it starts servers")
	t.Parallel()
	if mode := os.Getenv(parentVariable); mode != "" {
		beParent(t, mode)
		return
	}

	for name, kill := range map[string]struct {
		mode   string
		target func(*parent) int
		signal syscall.Signal
	}{
		"SIGKILL":                   {"start", (*parent).itself, syscall.SIGKILL},
		"SIGKILL after a restart":   {"restart", (*parent).itself, syscall.SIGKILL},
		"SIGKILL after a crash":     {"crash", (*parent).itself, syscall.SIGKILL},
		"SIGTERM":                   {"start", (*parent).itself, syscall.SIGTERM},
		"Ctrl-C, sent to the group": {"start", (*parent).group, syscall.SIGINT},
	} {
		t.Run(name+" leaves neither process nor folder", func(t *testing.T) {
			t.Parallel()
			temp := publicFolder(t)
			p := startParent(t, temp, kill.mode)
			left := watch(t, p.folder)
			if !left.keeping(t) {
				t.Fatal("the parent started nothing")
			}
			p.kill(t, kill.target(p), kill.signal)
			left.mustBeNothing(t)
			mustBeEmpty(t, temp)
		})
	}

	t.Run("SIGKILL of the keeper too is swept by the next start", func(t *testing.T) {
		t.Parallel()
		temp := publicFolder(t)
		p := startParent(t, temp, "start")
		left := watch(t, p.folder)
		if err := syscall.Kill(p.keeper, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.kill(t, p.itself(), syscall.SIGKILL)
		eventually(t, "parent and keeper are dead", func() bool { return !locked(t, left.folder) })
		if !locked(t, left.data) {
			t.Fatal("the server died with its keeper: there is nothing to sweep")
		}
		startParent(t, temp, "start").end(t)
		left.mustBeNothing(t)
		mustBeEmpty(t, temp)
	})

	t.Run("a sweep leaves a living server alone", func(t *testing.T) {
		t.Parallel()
		temp := publicFolder(t)
		p := startParent(t, temp, "start")
		left := watch(t, p.folder)
		startParent(t, temp, "start").end(t)
		if !left.keeping(t) {
			t.Error("the next start took a living server for a dead one")
		}
		p.end(t)
		left.mustBeNothing(t)
	})

	for _, part := range []string{"", "data", "data/base", "data/postmaster.pid", ".s.PGSQL.5432"} {
		t.Run("SIGKILL while it starts is swept at the latest by the next start/"+part, func(t *testing.T) {
			t.Parallel()
			temp := publicFolder(t)
			p := launchParent(t, temp, "start")
			eventually(t, "the start has come to "+part, func() bool {
				found, err := filepath.Glob(filepath.Join(temp, "payonce-pg-*", part))
				return err == nil && len(found) > 0
			})
			p.kill(t, p.itself(), syscall.SIGKILL)
			startParent(t, temp, "start").end(t)
			// The keeper of the first may still be at work.
			eventually(t, "all is gone", func() bool { return len(entries(t, temp)) == 0 })
		})
	}

	t.Run("a server whose keeper was killed is closed all the same", func(t *testing.T) {
		t.Parallel()
		s := start(t, local.Options{})
		left := watch(t, s.Folder())
		if err := syscall.Kill(s.KeeperPID(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		left.mustBeNothing(t)
	})
}

// beParent starts a server, says where, and waits to be killed or for the end
// of its standard input.
func beParent(t *testing.T, mode string) {
	t.Helper()
	s := start(t, local.Options{})
	var err error
	switch mode {
	case "restart":
		err = s.Restart(t.Context())
	case "crash":
		err = s.Crash(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(os.Stdout, parentVariable, s.KeeperPID(), s.Folder()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Error(err)
	}
}

// parent is another process that runs this very test as the starter of a server.
type parent struct {
	command *exec.Cmd
	stdin   io.Closer
	stdout  io.Reader
	keeper  int
	folder  string
}

// launchParent starts a parent in a process group of its own.
func launchParent(t *testing.T, temp, mode string) *parent {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &parent{command: exec.CommandContext(t.Context(), self, "-test.run=^TestKilledParent$")}
	p.command.Env = append(os.Environ(), parentVariable+"="+mode, "TMPDIR="+temp)
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := p.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin, p.stdout = stdin, stdout
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// startParent returns when the parent's server is up.
func startParent(t *testing.T, temp, mode string) *parent {
	t.Helper()
	p := launchParent(t, temp, mode)
	var said strings.Builder
	for lines := bufio.NewScanner(p.stdout); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[0] != parentVariable {
			continue
		}
		var err error
		if p.keeper, err = strconv.Atoi(fields[1]); err != nil {
			t.Fatal(err)
		}
		p.folder = fields[2]
		if filepath.Dir(p.folder) != temp {
			t.Fatalf("the folder is %s, not below TMPDIR %s", p.folder, temp)
		}
		return p
	}
	t.Fatalf("the parent ended without a server:\n%s", said.String())
	return nil
}

func (p *parent) itself() int { return p.command.Process.Pid }
func (p *parent) group() int  { return -p.command.Process.Pid }

func (p *parent) kill(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
	if err := p.command.Wait(); err == nil {
		t.Fatalf("the parent survived %v", signal)
	}
}

// end lets the parent close its server.
func (p *parent) end(t *testing.T) {
	t.Helper()
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.command.Wait(); err != nil {
		t.Fatalf("the parent did not end well: %v", err)
	}
}

// publicFolder is a temporary folder that the server's account can use too, with
// a path short enough for a socket.
func publicFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "payonce-test-*") //nolint:usetesting // t.TempDir is closed to other accounts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	return folder
}

func entries(t *testing.T, folder string) []string {
	t.Helper()
	found, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range found {
		names = append(names, entry.Name())
	}
	return names
}

func mustBeEmpty(t *testing.T, folder string) {
	t.Helper()
	if names := entries(t, folder); len(names) > 0 {
		t.Errorf("left in the temporary folder: %v", names)
	}
}
