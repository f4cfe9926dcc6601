package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/fleet"
	"github.com/payonce/payonce/internal/postgres/local"
)

// What all tests of this process use together, made by the first that needs it.
//
//nolint:gochecknoglobals // tests have no main that could hand it to them
var (
	shared     = sync.OnceValues(startShared)
	programs   = sync.OnceValues(buildPrograms)
	atTheEnd   []func() error
	atTheEndMu sync.Mutex
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, clean := range atTheEnd {
		if err := clean(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func finally(clean func() error) {
	atTheEndMu.Lock()
	defer atTheEndMu.Unlock()
	atTheEnd = append(atTheEnd, clean)
}

// startPatience bounds a start of anything, on a machine that is busy.
const startPatience = 2 * time.Minute

// startShared finds the server of the tests or starts one that forces every
// commit to disk, as the programs demand.
func startShared() (server, error) {
	if at := os.Getenv("TEST_DATABASE_URL"); at != "" {
		return newServer(at)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	started, err := local.Start(ctx, local.Options{Fsync: true, InMemory: true})
	if err != nil {
		return server{}, err
	}
	finally(started.Close)
	return newServer(started.URL("postgres"))
}

// built are the programs in their folder, and a script that starts one of them
// with its stdout in a file of its own.
type built struct {
	fleet.Binaries
	dir   string
	quiet string
}

// The script becomes the program, so that the process id stays.
const (
	quietScript  = "#!/bin/sh\nexec \"$E2E_PROGRAM\" >>\"$E2E_STDOUT\"\n"
	quietProgram = "E2E_PROGRAM"
	quietStdout  = "E2E_STDOUT"
)

// buildPrograms builds the programs as they would be released.
func buildPrograms() (built, error) {
	dir, err := newFolder()
	if err != nil {
		return built{}, err
	}
	// Written before the build, so that no child that was forked meanwhile still
	// has it open for writing when it is run.
	quiet := filepath.Join(dir, "quiet")
	if err := os.WriteFile(quiet, []byte(quietScript), 0o755); err != nil {
		return built{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	binaries, err := fleet.Build(ctx, dir)
	return built{binaries, dir, quiet}, err
}

const folderPrefix = "payonce-e2e-"

// newFolder makes the folder of this process, which is locked while the process
// lives, and removes those of processes that were killed.
func newFolder() (string, error) {
	old, err := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		if lock, err := lockFolder(dir); err == nil {
			// What is left of somebody else's is not ours to complain of.
			_ = errors.Join(os.RemoveAll(dir), lock.Close())
		}
	}
	fresh, err := os.MkdirTemp("", "new-"+folderPrefix)
	if err != nil {
		return "", err
	}
	// The lock is held before the folder bears the name by which it is found.
	lock, err := lockFolder(fresh)
	if err != nil {
		return "", errors.Join(fmt.Errorf("lock %s: %w", fresh, err), os.RemoveAll(fresh))
	}
	dir := filepath.Join(os.TempDir(), strings.TrimPrefix(filepath.Base(fresh), "new-"))
	finally(func() error { return errors.Join(os.RemoveAll(fresh), os.RemoveAll(dir), lock.Close()) })
	return dir, errors.Join(
		os.Chmod(fresh, 0o755), // PostgreSQL may run as another user
		os.Rename(fresh, dir))
}

func lockFolder(dir string) (*os.File, error) {
	folder, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return folder, nil
}

func binaries(t *testing.T) built {
	t.Helper()
	b, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
