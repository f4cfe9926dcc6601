package e2e_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/fleet"
	"github.com/payonce/payonce/internal/testrun"
)

// What all tests of this process share, made by the first test that needs it.
var (
	shared   = sync.OnceValues(startShared)
	programs = sync.OnceValues(buildPrograms)
)

func TestMain(m *testing.M) { testrun.Main(m) }

// startPatience bounds the start of a program or a server.
const startPatience = await.Stall

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
	started, err := local.Start(context.Background(), local.Options{Fsync: true, InMemory: true})
	if err != nil {
		return nil, err
	}
	testrun.AtEnd(started.Close)
	return newServer(started.URL("postgres"))
}

// built are the programs in their folder, and a script that starts one of them
// with its stdout in a file of its own.
type built struct {
	fleet.Binaries
	dir   string
	quiet string
}

// The script execs the program, so the process id stays the same.
const (
	quietScript  = "#!/bin/sh\nexec \"$E2E_PROGRAM\" >>\"$E2E_STDOUT\"\n"
	quietProgram = "E2E_PROGRAM"
	quietStdout  = "E2E_STDOUT"
)

// buildPrograms builds the programs, once for all tests of this process.
func buildPrograms() (built, error) {
	dir, err := os.MkdirTemp("", "programs-") // testrun removes it
	if err != nil {
		return built{}, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL may run as another user
		return built{}, err
	}
	// Written before the build: a child that was forked while the file was open
	// for writing would make the script "busy".
	quiet := filepath.Join(dir, "quiet")
	if err := os.WriteFile(quiet, []byte(quietScript), 0o755); err != nil {
		return built{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildPatience)
	defer cancel()
	binaries, err := fleet.Build(ctx, dir)
	return built{binaries, dir, quiet}, err
}

func binaries(t *testing.T) built {
	t.Helper()
	b, err := programs()
	if err != nil {
		t.Fatal(err)
	}
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

// repeatCommand is the command that repeats a test, with its flags.
func repeatCommand(t *testing.T, flags ...string) string {
	t.Helper()
	parts := strings.Split(t.Name(), "/")
	for _, name := range []string{"soak", "walk", "walk-seed", "mutants"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != f.DefValue && len(flags) == 0 {
			flags = append(flags, "-"+name+"='"+f.Value.String()+"'")
		}
	}
	return strings.TrimSpace("go test ./e2e -count=1 -run '^" + strings.Join(parts, "$/^") + "$' " + strings.Join(flags, " "))
}
