package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	prefix = "payonce-pg-"
	// longestParent leaves room for the path of a socket, which has at most 103 bytes on
	// macOS and 107 on Linux: /payonce-pg-4294967295/.s.PGSQL.5432 are 36.
	longestParent = 103 - 36
	// memory is where Linux keeps files in memory, and memoryNeeded what the server of a
	// test process may come to fill of it.
	memory       = "/dev/shm"
	memoryNeeded = 4 << 30 // bytes
	// patience is how long a busy machine may take to stop a server or a keeper.
	// PostgreSQL itself kills what is left of its processes after 5 s.
	patience = 2 * time.Minute
)

// folder holds one server: its data, socket and log.
//
// Two locks tell whether processes live. The starter of the server and its keeper hold
// the lock of the folder, every process of the server holds the lock of the data folder.
// The kernel releases a lock when its last holder ends, however it ends.
type folder struct {
	path string
	lock *os.File
}

func (f *folder) data() string { return filepath.Join(f.path, "data") }
func (f *folder) log() string  { return filepath.Join(f.path, "log") }

// makeFolder makes the folder of a new server, after it has removed what killed processes
// left beside it.
func (m machine) makeFolder(ctx context.Context, a account, inMemory bool) (*folder, error) {
	parent := "/tmp"
	if len(m.temp) <= longestParent && a.mayWrite(ctx, m.temp) {
		parent = m.temp
	}
	sweep(ctx, parent, a)
	var free syscall.Statfs_t
	if inMemory && !strings.HasPrefix(parent, memory+"/") && syscall.Statfs(memory, &free) == nil &&
		free.Bavail*uint64(free.Bsize) >= memoryNeeded && a.mayWrite(ctx, memory) {
		parent = memory
		sweep(ctx, parent, a)
	}
	return newFolder(parent, a)
}

// newFolder makes a folder that belongs to the account, and locks it. It holds a data
// folder, still empty.
func newFolder(parent string, a account) (*folder, error) {
	for {
		path, err := os.MkdirTemp(parent, prefix+"*")
		if err != nil {
			return nil, err
		}
		held, err := tryLock(path)
		if err == nil && held != nil {
			_, err = os.Stat(path)
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && held == nil {
			continue // a sweep removed it before it was locked
		}
		f := &folder{path, held}
		if err == nil {
			err = errors.Join(os.Mkdir(f.data(), 0o700), a.give(f.path), a.give(f.data()))
		}
		if err != nil {
			return nil, errors.Join(err, f.remove())
		}
		return f, nil
	}
}

// sweep removes what killed processes left in parent: folders whose starter and keeper
// have ended, and servers that outlived both. What cannot be removed is left to the next
// start.
func sweep(ctx context.Context, parent string, a account) {
	paths, _ := filepath.Glob(filepath.Join(parent, prefix+"*")) // never malformed
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || !a.owns(info) {
			continue
		}
		held, err := tryLock(path)
		if err != nil || held == nil {
			continue
		}
		f := &folder{path, held}
		if f.stop(ctx, a) != nil {
			_ = held.Close()
			continue
		}
		_ = f.remove()
	}
}

func (f *folder) remove() error {
	return errors.Join(os.RemoveAll(f.path), f.lock.Close())
}

// stop ends a server that has no keeper; none running is no error.
func (f *folder) stop(ctx context.Context, a account) error {
	if ended, err := f.ended(); ended || err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(f.data(), "postmaster.pid"))
	if err != nil {
		return err
	}
	pid, _, _ := strings.Cut(string(content), "\n")
	// The account sends the signals, so they cannot reach another account's process. Why
	// there are two: see script.
	err = runCommand(a.command(ctx, "/bin/sh", "-c", `kill -s TERM "$1" && { kill -s QUIT "$1"; true; }`, "sh", pid))
	if err != nil {
		return fmt.Errorf("stop the server of %s: %w", f.path, err)
	}
	return f.awaitEnd(ctx)
}

// ended reports whether no process of the server is left.
func (f *folder) ended() (bool, error) {
	held, err := tryLock(f.data())
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil || held == nil {
		return false, err
	}
	return true, held.Close()
}

// awaitEnd waits until no process of the server is left.
func (f *folder) awaitEnd(ctx context.Context) error {
	held, err := lock(ctx, f.data())
	if err != nil {
		return err
	}
	return held.Close()
}

// lock waits until it has locked a folder. A lock that this process has just released may
// still be held: a child process has copies of our open files between fork and exec.
func lock(ctx context.Context, path string) (held *os.File, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = poll(ctx, func() (bool, error) {
		held, err = tryLock(path)
		return held != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return held, nil
}

// tryLock locks a folder until the last copy of the returned file is closed. It returns
// nil if another process holds the lock, and fs.ErrNotExist if there is no folder.
func tryLock(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	return file, nil
}

// poll calls done until it returns true or an error, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
