package local

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/payonce/payonce/internal/await"
)

func TestStart_whoseProcessIsKilled_leavesNeitherProcessNorFolder(t *testing.T) {
	long(t)
	t.Parallel()
	for name, kill := range map[string]struct {
		mode   string
		target func(*starter) int
		signal syscall.Signal
	}{
		"SIGKILL after a restart and a crash": {"restart and crash", (*starter).itself, syscall.SIGKILL},
		"SIGTERM":                             {"start", (*starter).itself, syscall.SIGTERM},
		"Ctrl-C, sent to the process group":   {"start", (*starter).group, syscall.SIGINT},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			temp := publicFolder(t)
			s := runningStarter(t, temp, kill.mode)
			server := watch(t, s.folder)
			if !server.running(t) {
				t.Fatal("the process started no server")
			}
			s.kill(t, kill.target(s), kill.signal)
			server.mustEndWithoutAFolder(t)
			mustBeEmpty(t, temp)
		})
	}
}

// Whatever the process was doing when it was killed, its keeper or the next
// start removes it.
func TestStart_killedBeforeItsEnd_isRemovedByTheNextStart(t *testing.T) {
	long(t)
	t.Parallel()
	for name, made := range map[string]string{
		"with an empty folder":       "",
		"with part of a data folder": "data/base",
		"while the server starts":    "data/postmaster.pid",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			temp := publicFolder(t)
			s := launchStarter(t, temp, "start")
			await.True(t, "the start has made "+made, func() bool {
				found, err := filepath.Glob(filepath.Join(temp, "payonce-pg-*", made))
				return err == nil && len(found) > 0
			})
			s.kill(t, s.itself(), syscall.SIGKILL)
			await.True(t, "nothing is left in "+temp, func() bool {
				startNothing(t, temp)
				return len(entries(t, temp)) == 0
			})
		})
	}
}

func TestStart_removesAServerWithoutKeeperAndKeepsTheOthers(t *testing.T) {
	long(t)
	t.Parallel()
	temp := publicFolder(t)
	killed, living := runningStarter(t, temp, "start"), runningStarter(t, temp, "start")
	orphan, other := watch(t, killed.folder), watch(t, living.folder)
	if err := syscall.Kill(killed.keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed.kill(t, killed.itself(), syscall.SIGKILL)
	await.True(t, "the process and its keeper are dead", func() bool { return !locked(t, orphan.folder) })
	if !locked(t, orphan.data) {
		t.Fatal("the server died with its keeper: there is nothing to remove")
	}

	startNothing(t, temp)

	orphan.mustEndWithoutAFolder(t)
	if !other.running(t) {
		t.Error("the next start removed a server whose process lives")
	}
	living.end(t)
	other.mustEndWithoutAFolder(t)
	mustBeEmpty(t, temp)
}

// startNothing is a start on a machine that has no PostgreSQL: it removes what
// killed processes left in temp, and then fails.
func startNothing(t *testing.T, temp string) {
	t.Helper()
	if _, err := (machine{temp: temp}).start(t.Context(), Options{}); err == nil {
		t.Fatal("a server was started out of nothing")
	}
}

// starterVariable makes the test program a starter. Its value says what the
// starter does.
const starterVariable = "PAYONCE_LOCAL_TEST_STARTER"

func runStarter(mode string) int {
	if err := startAndWait(context.Background(), mode); err != nil {
		_, _ = fmt.Fprintln(os.Stdout, err)
		return 1
	}
	return 0
}

// startAndWait starts a server, prints where, and waits to be killed or for the end of its
// standard input.
func startAndWait(ctx context.Context, mode string) error {
	s, err := Start(ctx, Options{})
	if err != nil {
		return err
	}
	if mode == "restart and crash" {
		if err := s.Restart(ctx); err != nil {
			return err
		}
		if err := s.Crash(ctx); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(os.Stdout, starterVariable, s.keeper.command.Process.Pid, s.folder.path); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	return s.Close()
}

// starter is another process that starts a server.
type starter struct {
	command *exec.Cmd
	stdin   io.Closer
	stdout  io.Reader
	keeper  int
	folder  string
}

// launchStarter starts a starter in a process group of its own.
func launchStarter(t *testing.T, temp, mode string) *starter {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &starter{command: exec.CommandContext(t.Context(), self)}
	s.command.Env = append(os.Environ(), starterVariable+"="+mode, "TMPDIR="+temp)
	s.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := s.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := s.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.stdin, s.stdout = stdin, stdout
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// runningStarter returns when the starter's server accepts connections.
func runningStarter(t *testing.T, temp, mode string) *starter {
	t.Helper()
	s := launchStarter(t, temp, mode)
	var printed strings.Builder
	for lines := bufio.NewScanner(s.stdout); lines.Scan(); {
		printed.WriteString(lines.Text() + "\n")
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[0] != starterVariable {
			continue
		}
		var err error
		if s.keeper, err = strconv.Atoi(fields[1]); err != nil {
			t.Fatal(err)
		}
		s.folder = fields[2]
		if filepath.Dir(s.folder) != temp {
			t.Fatalf("the folder is %s, not below TMPDIR %s", s.folder, temp)
		}
		return s
	}
	t.Fatalf("the starter ended without a server:\n%s", printed.String())
	return nil
}

func (s *starter) itself() int { return s.command.Process.Pid }
func (s *starter) group() int  { return -s.command.Process.Pid }

func (s *starter) kill(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
	if err := s.command.Wait(); err == nil {
		t.Fatalf("the starter survived %v", signal)
	}
}

// end lets the starter close its server.
func (s *starter) end(t *testing.T) {
	t.Helper()
	if err := s.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.command.Wait(); err != nil {
		t.Fatalf("the starter ended with %v", err)
	}
}
