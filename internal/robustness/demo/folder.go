package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// folder holds a run's programs and logs. It is locked while the run lasts, so
// that a later run can tell a folder in use from one whose owner was killed.
type folder struct {
	path string
	lock *os.File
}

const folderPattern = "payonce-demo-"

// newFolder makes a folder in parent and removes those that earlier runs left.
func newFolder(parent string) (*folder, error) {
	if err := sweep(parent); err != nil {
		return nil, fmt.Errorf("remove folders of earlier runs: %w", err)
	}
	path, err := os.MkdirTemp(parent, folderPattern)
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	// The lock is held before it bears the name by which a sweep finds it.
	lock, err := lockFile(filepath.Join(path, "new"))
	if err == nil {
		err = os.Rename(filepath.Join(path, "new"), filepath.Join(path, "lock"))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock a folder: %w", err), os.RemoveAll(path))
	}
	return &folder{path: path, lock: lock}, nil
}

func (f *folder) remove() error {
	return errors.Join(os.RemoveAll(f.path), f.lock.Close())
}

// sweep removes the folders whose owner is gone, as far as they are ours.
func sweep(parent string) error {
	locks, err := filepath.Glob(filepath.Join(parent, folderPattern+"*", "lock"))
	if err != nil {
		return err
	}
	for _, path := range locks {
		lock, err := lockFile(path)
		if err != nil {
			continue // in use, or another user's
		}
		if err := errors.Join(os.RemoveAll(filepath.Dir(path)), lock.Close()); err != nil {
			return err
		}
	}
	return nil
}

// lockFile opens a file and locks it until it is closed or its owner ends. It
// does not wait.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
