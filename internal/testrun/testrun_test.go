package testrun_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/testrun"
)

// roleVariable makes TestProcess one of the processes that the other tests start.
const roleVariable = "PAYONCE_TESTRUN_ROLE"

func TestMain(m *testing.M) { testrun.Main(m) }

// TestProcess is the body of the child processes. It does nothing in the tests'
// own process.
func TestProcess(t *testing.T) { //nolint:paralleltest // it is alone in its process
	role := os.Getenv(roleVariable)
	if role == "" {
		t.Skip("not run: it is the body of the processes that the other tests start")
	}
	testrun.Must(t, os.WriteFile(filepath.Join(t.TempDir(), "content"), []byte("content"), 0o600))
	switch role {
	case "passes":
	case "fails by its choices":
		t.Errorf("chosen: %d", testrun.Rand(t).Uint64())
	case "panics":
		panic("it panics")
	case "leaves a goroutine":
		go func() { select {} }()
	case "ends with an error":
		testrun.AtEnd(func() error { return os.ErrClosed })
	case "hangs":
		if _, err := os.Stdout.WriteString("hangs\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) //nolint:forbidigo // until it is killed or times out
	}
}

func TestMain_leavesNothingBehind(t *testing.T) {
	testrun.Long(t, "it starts processes")
	t.Parallel()
	for _, c := range []struct {
		role string
		args []string
		fail bool
	}{
		{role: "passes"},
		{role: "panics", fail: true},
		{role: "hangs", args: []string{"-test.timeout=100ms"}, fail: true},
		{role: "leaves a goroutine", fail: true},
		{role: "ends with an error", fail: true},
	} {
		t.Run(strings.ReplaceAll(c.role, " ", "_"), func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			out, err := child(parent, c.role, c.args...).CombinedOutput()
			if failed := err != nil; failed != c.fail {
				t.Errorf("it ended with %v, want an error: %v\n%s", err, c.fail, out)
			}
			isEmptied(t, parent)
		})
	}
}

// TestRand_failureIsRepeatedByTheFlagsItPrints lets a child fail by its choices, and starts
// it again with the flags that it printed.
func TestRand_failureIsRepeatedByTheFlagsItPrints(t *testing.T) {
	t.Parallel()
	printed := func(args ...string) (choices, seed string) {
		out, _ := child(t.TempDir(), "fails by its choices", args...).CombinedOutput() // it fails
		_, seed, _ = strings.Cut(regexp.MustCompile(`-run 'TestProcess' .*`).FindString(string(out)), " -seed=")
		return regexp.MustCompile(`chosen: .*`).FindString(string(out)), seed
	}
	choices, seed := printed()
	if seed == "" || choices == "" {
		t.Fatalf("it printed %q and the seed %q", choices, seed)
	}
	again, _ := printed("-seed=" + seed)
	testrun.Same(t, "the choices with the same seed", choices, again)
	if other, _ := printed(); other == choices {
		t.Errorf("another run has the same choices: %s", other)
	}
}

func TestMain_endsWhenItsParentDies(t *testing.T) {
	testrun.Long(t, "it starts processes")
	t.Parallel()
	parent := t.TempDir()
	self, err := filepath.Abs(os.Args[0])
	testrun.Must(t, err)
	// The shell is the parent and stays until it is killed.
	shell := exec.CommandContext(t.Context(), "/bin/sh", "-c", `"$@" & wait`, "sh", self, "-test.run=^TestProcess$")
	shell.Env = child(parent, "hangs").Env
	out, err := shell.StdoutPipe()
	testrun.Must(t, err)
	testrun.Must(t, shell.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "hangs\n" {
		t.Errorf("the process printed %q, %v", line, err)
	}
	testrun.Must(t, shell.Process.Kill())
	_ = shell.Wait() // killed
	isEmptied(t, parent)
}

// child is this test binary as a process with a role.
func child(parent, role string, args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], append([]string{"-test.run=^TestProcess$"}, args...)...) //nolint:noctx // it ends or is killed
	c.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TMPDIR=") }),
		roleVariable+"="+role, "TMPDIR="+parent, "AWAIT_STALL=1s")
	return c
}

func isEmptied(t *testing.T, folder string) {
	t.Helper()
	testrun.Progress(t, folder+" is empty", func() (string, bool) {
		left, err := os.ReadDir(folder)
		return fmt.Sprint(left), len(left) == 0 && err == nil
	})
}
