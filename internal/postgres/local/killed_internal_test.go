package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestStart_whoseProcessGroupIsInterrupted_leavesNeitherProcessNorFolder(t *testing.T) {
	long(t)
	t.Parallel()
	temp := publicFolder(t)
	s := runningStarter(t, temp, "start")
	client := connectTo(t, s.url)
	s.kill(t, -s.pid(), syscall.SIGINT) // as Ctrl-C does
	awaitEnd(t, client)
	await(t, temp+" is empty", func() bool { return len(entries(t, temp)) == 0 })
}

// The server that starts has not written its process id yet, or makes files that its folder's removal misses.
func TestStart_killedWhileItsServerStarts_isRemoved(t *testing.T) {
	long(t)
	t.Parallel()
	temp := filepath.Join(publicFolder(t), "[") // no pattern
	must(t, errors.Join(os.Mkdir(temp, 0o777), os.Chmod(temp, 0o777)))
	s := launchStarter(t, temp, "start")
	await(t, "the server starts", func() bool {
		found, err := fs.Glob(os.DirFS(temp), prefix+"*/"+dataFolder+"/postmaster.pid")
		return err == nil && len(found) > 0
	})
	s.kill(t, s.pid(), syscall.SIGKILL)
	await(t, "nothing is left in "+temp, func() bool {
		startNothing(t, temp)
		return len(entries(t, temp)) == 0
	})
}

// The guard of the other removes it when its process is killed too, also after a restart.
func TestStart_removesAServerWithoutGuardAndKeepsTheOthers(t *testing.T) {
	long(t)
	t.Parallel()
	temp := publicFolder(t)
	killed, living := runningStarter(t, temp, "without guard"), runningStarter(t, temp, "restart")
	orphan, other := connectTo(t, killed.url), connectTo(t, living.url)
	killed.kill(t, killed.pid(), syscall.SIGKILL)
	var server int // process id
	err := orphan.QueryRow(t.Context(), `select split_part(pg_read_file('postmaster.pid'), chr(10), 1)::int`).Scan(&server)
	if err != nil {
		t.Fatalf("the server ended with its cleanup script, so there is nothing to remove: %v", err)
	}

	await(t, "one folder is left", func() bool { // the lock is released when the cleanup script has ended
		startNothing(t, temp)
		return len(entries(t, temp)) == 1
	})
	if err := other.Ping(t.Context()); err != nil {
		t.Errorf("the next start removed a server whose process lives: %v", err)
	}
	_ = syscall.Kill(server, syscall.SIGQUIT) // unless it has found its data gone, for which it looks once a minute
	awaitEnd(t, orphan)
	living.kill(t, living.pid(), syscall.SIGKILL)
	awaitEnd(t, other)
	await(t, temp+" is empty", func() bool { return len(entries(t, temp)) == 0 })
}

// startNothing is a start on a machine that has no PostgreSQL: it removes what killed
// processes left in temp, and then fails.
func startNothing(t *testing.T, temp string) {
	t.Helper()
	if _, err := (machine{temp: temp}).start(t.Context(), Options{}); err == nil {
		t.Fatal("a server was started out of nothing")
	}
}

// starterVariable makes the test program a starter. Its value says what the starter does.
const starterVariable = "PAYONCE_LOCAL_TEST_STARTER"

// runStarter starts a server, prints its URL, and waits to be killed.
func runStarter(mode string) int {
	s, err := Start(context.Background(), Options{})
	if err == nil && mode == "restart" {
		err = s.Restart(context.Background())
	}
	if err == nil && mode == "without guard" {
		err = s.dir.guard.Process.Kill()
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stdout, err)
		return 1
	}
	_, _ = fmt.Fprintln(os.Stdout, starterVariable, s.URL("postgres"))
	select {}
}

// starter is another process that starts a server.
type starter struct {
	command *exec.Cmd
	stdout  io.Reader
	url     string
}

// launchStarter starts a starter in a process group of its own.
func launchStarter(t *testing.T, temp, mode string) *starter {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	s := &starter{command: exec.CommandContext(t.Context(), self)}
	s.command.Env = append(os.Environ(), starterVariable+"="+mode, "TMPDIR="+temp)
	s.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.stdout, err = s.command.StdoutPipe()
	must(t, err)
	must(t, s.command.Start())
	return s
}

// runningStarter returns when the starter's server accepts connections.
func runningStarter(t *testing.T, temp, mode string) *starter {
	t.Helper()
	s := launchStarter(t, temp, mode)
	var printed strings.Builder
	for lines := bufio.NewScanner(s.stdout); lines.Scan(); {
		printed.WriteString(lines.Text() + "\n")
		if url, found := strings.CutPrefix(lines.Text(), starterVariable+" "); found && strings.Contains(url, temp+"/") {
			s.url = url
			return s
		}
	}
	t.Fatalf("the starter ended without a server in %s:\n%s", temp, printed.String())
	return nil
}

func (s *starter) pid() int { return s.command.Process.Pid }

func (s *starter) kill(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	must(t, syscall.Kill(pid, signal))
	if err := s.command.Wait(); err == nil {
		t.Fatalf("the starter survived %v", signal)
	}
}

// awaitEnd waits until the server has ended its client's session.
func awaitEnd(t *testing.T, client *pgx.Conn) {
	t.Helper()
	await(t, "the server ends", func() bool { return client.Ping(t.Context()) != nil })
}
