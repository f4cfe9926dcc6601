package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// All tests of this process share these. The first test that needs one makes it.
var (
	shared   = sync.OnceValues(startShared)
	programs = sync.OnceValues(buildPrograms)
)

func TestMain(m *testing.M) { testrun.Main(m) }

const buildTimeout = 10 * time.Minute

// startShared connects to the server of TEST_DATABASE_URL, or starts one with
// fsync, which the programs require.
func startShared() (*server, error) {
	if at := os.Getenv("TEST_DATABASE_URL"); at != "" {
		s, err := newServer(at)
		if err == nil {
			testrun.AtEnd(s.dropTemplates)
		}
		return s, err
	}
	// It may download PostgreSQL first, and bounds that itself.
	// Each program may have dozens of connections, and many run at a time.
	o := local.Options{Fsync: true, InMemory: true, Settings: map[string]string{"max_connections": "800"}}
	started, err := local.Start(context.Background(), o)
	if err != nil {
		return nil, err
	}
	testrun.AtEnd(started.Close)
	return newServer(started.URL("postgres"))
}

// buildPrograms builds the programs, once for all tests of this process.
func buildPrograms() (harness.Binaries, error) {
	dir, err := os.MkdirTemp("", "programs-") // testrun removes it
	if err != nil {
		return harness.Binaries{}, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL may run as another user
		return harness.Binaries{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	return harness.Build(ctx, dir)
}

// raceDetecting are the programs with an api and a worker that report data races. Without a C
// compiler they are the others.
var raceDetecting = sync.OnceValues(func() (harness.Binaries, error) {
	b, err := programs()
	dir := filepath.Join(filepath.Dir(b.API), "race")
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	if err != nil || exec.CommandContext(ctx, "sh", "-c", "command -v $(go env CC)").Run() != nil {
		return b, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-race", "-o", dir+string(filepath.Separator), "./cmd/api", "./cmd/worker")
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		return b, fmt.Errorf("build with the race detector: %w\n%s", err, out)
	}
	b.API, b.Worker = filepath.Join(dir, "api"), filepath.Join(dir, "worker")
	return b, nil
})

func binaries(t *testing.T) harness.Binaries {
	t.Helper()
	b, err := programs()
	must(t, err)
	return b
}

// startsPrograms skips a test that starts programs when -short is set. One test
// runs nevertheless: a charge whose worker is killed once.
func startsPrograms(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not run with -short: the test starts programs")
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) { _ = harness.Wait(ctx, d) }

// unique returns a word that no other call returned. It has a letter at each end:
// digits alone could pass for a card number.
func unique() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "u" + hex.EncodeToString(b[:]) + "q"
}
