package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// TestRace runs an api and a worker that were built with the race detector. A report in the
// log of a program fails the test.
func TestRace(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	needsRaceDetector(t)
	t.Run("a shop's day", func(t *testing.T) {
		t.Parallel()
		shopsDayOn(t, setup{apis: 2, workers: 2, providerEvents: true, workerEnv: longLease(), detectRaces: true})
	})
	t.Run("a key has one answer, whatever is killed", func(t *testing.T) {
		t.Parallel()
		const operations, every = 300, 500 * time.Millisecond
		oneAnswer(t, setup{detectRaces: true}, operations, every)
	})
}

// raceDetecting are the programs with an api and a worker that report data races, built once
// for all tests of this process.
var raceDetecting = sync.OnceValues(func() (harness.Binaries, error) {
	b, err := programs()
	if err != nil {
		return b, err
	}
	dir := filepath.Join(filepath.Dir(b.API), "race")
	b.API, b.Worker = filepath.Join(dir, "api"), filepath.Join(dir, "worker")
	return b, buildWithRaceDetector(dir, "./cmd/api", "./cmd/worker")
})

func buildWithRaceDetector(dir string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	args = append([]string{"build", "-race", "-o", dir + string(filepath.Separator)}, args...)
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = ".."
	command.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
}

// needsRaceDetector skips a test where programs cannot be built with the race detector.
func needsRaceDetector(t *testing.T) {
	t.Helper()
	cc, err := exec.CommandContext(t.Context(), "go", "env", "CC").Output()
	must(t, err)
	compiler, _, _ := strings.Cut(strings.TrimSpace(string(cc)), " ")
	if _, err := exec.LookPath(compiler); err != nil {
		t.Skipf("not run: the race detector needs a C compiler: %v", err)
	}
}

// raceIn is the first report of a data race in a log, or empty.
func raceIn(log []byte) string {
	_, report, found := bytes.Cut(log, []byte("WARNING: DATA RACE\n"))
	if !found {
		return ""
	}
	report, _, _ = bytes.Cut(report, []byte("\n=================="))
	return string(report)
}
