// Package testrun runs the tests of a package in a process that leaves nothing
// behind, however it ends: tests that pass, fail, panic or time out, Ctrl-C,
// SIGKILL of the process, SIGKILL of the go command above it.
//
// Each test process has a folder of its own, in which TMPDIR points. A shell
// waits on a pipe from the process and removes the folder when the pipe ends. If
// the shell is killed too, the next test process finds the folder by its lock,
// which no process holds any more, and removes it.
package testrun

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// prefix names the folders, freshPrefix one that has no lock yet.
const (
	prefix      = "payonce-test-"
	freshPrefix = "new-" + prefix
)

// parallel is how many parallel tests of a package run at a time on few
// processors: what they mostly do is wait for the database and for each other.
// The tests of short mode wait less: six at a time took 57 s, three take 51 s.
const (
	parallel      = 6
	parallelShort = 3
)

var (
	endings   []func() error
	endingsMu sync.Mutex
)

// AtEnd registers what has to be closed after the last test of the process, such
// as a server that its tests share. The last registered is called first. An
// error makes the process fail. A process that does not come to its end is
// cleaned up by what it started, not by this.
func AtEnd(end func() error) {
	endingsMu.Lock()
	defer endingsMu.Unlock()
	endings = append(endings, end)
}

// Main runs the tests and exits. It is the whole of a package's TestMain. The
// process fails where a test leaves a goroutine behind.
func Main(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		flag.Parse() // testing.Short needs it
		n := parallel
		if testing.Short() {
			n = parallelShort
		}
		_ = f.Value.Set(strconv.Itoa(max(n, runtime.GOMAXPROCS(0)))) // a number it takes
	}
	folder, err := newFolder(parentFolder())
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a folder for the tests:", err)
		return 1
	}
	go exitWithParent(os.Getppid())
	ignore := goleak.IgnoreCurrent()
	code := m.Run()
	if err := end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if err := noGoroutine(ignore); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := folder.remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

func end() error {
	endingsMu.Lock()
	defer endingsMu.Unlock()
	var errs []error
	for _, end := range slices.Backward(endings) {
		errs = append(errs, end())
	}
	endings = nil
	return errors.Join(errs...)
}

// noGoroutine looks for goroutines that the tests left. A connection that is
// being closed ends in its own time, which on a busy machine is longer than
// goleak waits.
func noGoroutine(ignore goleak.Option) (err error) {
	const looks = 20 // each waits for a while
	for range looks {
		if err = goleak.Find(ignore); err == nil {
			return nil
		}
	}
	return err
}

// exitWithParent ends the process when the go command that started it is gone:
// nothing reads the tests' output any more.
func exitWithParent(parent int) {
	for range time.Tick(time.Second) {
		if os.Getppid() != parent {
			os.Exit(1)
		}
	}
}

// folder is the temporary folder of this process.
type folder struct {
	path  string
	lock  *os.File
	guard *exec.Cmd
	pipe  *os.File // to the guard
}

// guardScript waits for the end of its standard input. A line on it means that
// the folder is gone already. Programs that die at the same moment may still
// write to the folder, so removing is tried for some seconds.
const guardScript = `trap '' HUP INT TERM
read -r removed && exit
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	rm -rf "$1" 2>/dev/null && exit
	sleep 0.5
done`

// parentFolder is os.TempDir(), or the folder above it in a process that a test
// process started: the path of a PostgreSQL socket has a limit.
func parentFolder() string {
	parent := os.TempDir()
	if strings.HasPrefix(filepath.Base(parent), prefix) {
		return filepath.Dir(parent)
	}
	return parent
}

// newFolder makes the folder, points TMPDIR to it, and removes the folders of
// processes that were killed.
func newFolder(parent string) (*folder, error) {
	if err := sweep(parent); err != nil {
		return nil, err
	}
	fresh, err := os.MkdirTemp(parent, freshPrefix)
	if err != nil {
		return nil, err
	}
	f := &folder{path: filepath.Join(parent, strings.TrimPrefix(filepath.Base(fresh), "new-"))}
	// The lock is held before the folder has the name by which others find it.
	if f.lock, err = lock(fresh); err != nil {
		return nil, errors.Join(err, os.RemoveAll(fresh))
	}
	// PostgreSQL may run as another user, who has to get in.
	if err := errors.Join(os.Chmod(fresh, 0o777|os.ModeSticky), os.Rename(fresh, f.path)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(fresh), os.RemoveAll(f.path))
	}
	if err := f.startGuard(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(f.path))
	}
	return f, os.Setenv("TMPDIR", f.path)
}

func (f *folder) startGuard() error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	f.pipe = write
	// The guard has a session of its own, so Ctrl-C in the terminal does not reach it.
	f.guard = exec.Command("/bin/sh", "-c", guardScript, "sh", f.path) //nolint:noctx // it outlives every context
	f.guard.Dir = "/"
	f.guard.Stdin = read
	f.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return errors.Join(f.guard.Start(), read.Close())
}

func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	if err == nil {
		_, err = f.pipe.WriteString("removed\n")
	}
	err = errors.Join(err, f.pipe.Close(), f.lock.Close())
	_ = f.guard.Wait() // its exit status says nothing
	return err
}

// sweep removes the folders that no process holds a lock of. What belongs to
// another user stays.
func sweep(parent string) error {
	for _, pattern := range []string{prefix, freshPrefix} {
		left, err := filepath.Glob(filepath.Join(parent, pattern+"*"))
		if err != nil {
			return err
		}
		for _, path := range left {
			if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) < youngest && pattern == freshPrefix { //nolint:forbidigo // the age of a file
				continue
			}
			if held, err := lock(path); err == nil {
				_ = os.RemoveAll(path)
				_ = held.Close()
			}
		}
	}
	return nil
}

// youngest is the age from which a folder without a lock is one that a killed
// process left before it could take the lock.
const youngest = time.Minute

func lock(path string) (*os.File, error) {
	folder, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), folder.Close())
	}
	return folder, nil
}
