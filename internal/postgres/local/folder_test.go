package local_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
)

// A child process has copies of our open files between fork and exec, and with
// them a lock that we have released.
func TestLockData_waitsUntilTheLockIsReleased(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	data := filepath.Join(folder, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	held, err := local.Flock(data)
	if err != nil || held == nil {
		t.Fatal("the first lock:", held, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := local.LockData(canceled, folder); !errors.Is(err, context.Canceled) {
		t.Errorf("the wait for a held lock ends with %v", err)
	}
	locked := make(chan error, 1)
	go func() {
		lock, err := local.LockData(t.Context(), folder)
		if err == nil {
			err = lock.Close()
		}
		locked <- err
	}()
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Error("after the lock was released:", err)
	}
}
