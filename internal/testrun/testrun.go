// Package testrun runs the tests of a package in a process that leaves nothing
// behind, however it ends: tests that pass, fail, panic or time out, Ctrl-C,
// SIGKILL of the process, SIGKILL of the go command above it. Each test process
// has a folder of its own, in which TMPDIR points; local.Dir removes it.
//
// It also lets a test wait for a condition without judging how fast the machine
// is. A wait ends as soon as its condition holds. It fails only when nothing has
// changed for [Stall]: a value that changes restarts the clock, and a machine that
// stands still for a while uses up at most a second of it. So a test may be slow on
// a busy machine, but not wrong.
//
// The packages that other modules import have tests that need it, so it knows
// nothing of the service, and no other package has it.
package testrun

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/payonce/payonce/internal/postgres/local"
)

const prefix = "payonce-test-"

// parallel is how many parallel tests of a package run at a time on few
// processors: what they mostly do is wait for the database and for each other.
const parallel = 6

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

// Long leaves a test out of short mode, and says why: what takes its time.
func Long(tb testing.TB, why string) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("not run in short mode: " + why)
	}
}

// Main runs the tests and exits. It is the whole of a package's TestMain. The
// process fails where a test leaves a goroutine behind.
func Main(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		_ = f.Value.Set(strconv.Itoa(max(parallel, runtime.GOMAXPROCS(0)))) // a number it takes
	}
	folder, err := makeFolder()
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a folder for the tests:", err)
		return 1
	}
	go exitWithParent(os.Getppid())
	ignore := goleak.IgnoreCurrent()
	code := m.Run()
	err = end()
	if err == nil && code == 0 {
		err = noGoroutine(ignore)
	}
	if err := errors.Join(err, folder.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// makeFolder makes the folder of this process, and points TMPDIR to it.
func makeFolder() (*local.Dir, error) {
	parent := os.TempDir()
	if strings.HasPrefix(filepath.Base(parent), prefix) {
		parent = filepath.Dir(parent) // a test started this process: the path of a PostgreSQL socket has a limit
	}
	folder, err := local.NewDir(parent, prefix)
	if err != nil {
		return nil, err
	}
	// PostgreSQL may run as another user, who has to get in.
	return folder, errors.Join(os.Chmod(folder.Path, 0o777|os.ModeSticky), os.Setenv("TMPDIR", folder.Path))
}

// Must ends the test if there is an error.
func Must(tb TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%v", err)
	}
}

// Same reports how got differs from want. What names them.
func Same(tb TB, what string, want, got any, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Server starts a server that no other test uses, for what the shared one cannot show: its
// settings, a crash, or that a program takes it, which refuses one without fsync. It ends
// with the test.
func Server(tb testing.TB, o local.Options) *local.Server {
	tb.Helper()
	s, err := local.Start(tb.Context(), o)
	Must(tb, err)
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// Golden compares lines with a file of testdata, which UPDATE_GOLDEN=1 writes. Each change of such a file is a change of
// behaviour, to be read line by line.
func Golden(tb testing.TB, file string, lines ...string) {
	tb.Helper()
	path, got := filepath.Join("testdata", file), strings.Join(lines, "\n")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		Must(tb, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	Must(tb, err)
	Same(tb, path, strings.Split(string(want), "\n"), strings.Split(got, "\n"))
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
	Within(min(limit, 10*time.Second), func() bool { err = goleak.Find(ignore); return err == nil })
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
