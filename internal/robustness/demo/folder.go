package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const folderPrefix = "payonce-demo-"

// newFolder makes a folder for a run's programs and logs, which is locked until lock
// is closed or this process ends, and removes those whose run was killed.
func newFolder(parent string) (path string, lock *os.File, err error) {
	left, err := filepath.Glob(filepath.Join(parent, folderPrefix+"*"))
	if err != nil {
		return "", nil, fmt.Errorf("find folders of earlier runs: %w", err)
	}
	for _, path := range left {
		if lock, err := lockFolder(path); err == nil { // it is not in use, and not another user's
			_ = errors.Join(os.RemoveAll(path), lock.Close()) // the next run tries again
		}
	}
	fresh, err := os.MkdirTemp(parent, "new-"+folderPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("make a folder: %w", err)
	}
	path = filepath.Join(parent, strings.TrimPrefix(filepath.Base(fresh), "new-"))
	// The lock is held before the folder has the name by which others find it.
	if lock, err = lockFolder(fresh); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("lock a folder: %w", err), os.RemoveAll(fresh))
	}
	return path, lock, nil
}

// lockFolder opens and locks a folder. It does not wait.
func lockFolder(path string) (*os.File, error) {
	folder, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return folder, nil
}
