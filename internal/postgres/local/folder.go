package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	prefix = "payonce-pg-"
	// socketLimit is the shortest limit of a socket's path on the systems we
	// run on (macOS: 103 bytes; Linux: 107).
	socketLimit = 103
	// patience is how long a server may take to stop, and a keeper to end, on a
	// machine that is busy. PostgreSQL itself kills what is left of its processes
	// after 5 s.
	patience = 2 * time.Minute
)

// folder holds one server: its data, socket and log.
//
// Two locks tell the living from the dead, whatever was killed: the lock of the
// folder itself is held by the process that started the server and by its
// keeper, the lock of the data folder by every process of the server. The
// kernel drops them with the last of their holders.
type folder struct {
	path string
	lock *os.File
}

// parentFolder is where the folders of servers lie: the folder for temporary
// files, or /tmp where that is too long for a socket or closed to the account.
func (p places) parentFolder(a account) string {
	longest := len(filepath.Join(p.temp, prefix+strconv.FormatUint(1<<32-1, 10), socketName))
	if longest > socketLimit || !a.mayUse(p.temp) {
		return "/tmp"
	}
	return p.temp
}

// memory is where Linux keeps files in memory, and memoryNeeded what a server of
// tests may come to fill of it.
const (
	memory       = "/dev/shm"
	memoryNeeded = 4 << 30 // bytes
)

// memoryFolder is where the folders of servers in memory lie: parentFolder where
// that is in memory, else memory if there is enough of it.
func (p places) memoryFolder(a account) (string, bool) {
	if parent := p.parentFolder(a); strings.HasPrefix(parent, memory+"/") {
		return parent, true
	}
	var free syscall.Statfs_t
	if syscall.Statfs(memory, &free) != nil || !a.mayUse(memory) {
		return "", false
	}
	return memory, free.Bavail*uint64(free.Bsize) >= memoryNeeded
}

// mayUse says whether the account can make and remove folders in one of ours.
func (a account) mayUse(path string) bool {
	if a.credential == nil {
		return true
	}
	need := fs.FileMode(0o003)
	for {
		info, err := os.Stat(path)
		if err != nil || info.Mode()&need != need {
			return false
		}
		if path == filepath.Dir(path) {
			return true
		}
		path, need = filepath.Dir(path), 0o001
	}
}

// newFolder makes a folder that belongs to the account and locks it.
func newFolder(parent string, a account) (*folder, error) {
	for {
		path, err := os.MkdirTemp(parent, prefix+"*")
		if err != nil {
			return nil, err
		}
		lock, err := flock(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && lock == nil {
			continue // a sweep took it for a dead one: it was not locked yet
		}
		if err != nil {
			return nil, errors.Join(err, os.Remove(path))
		}
		f := &folder{path: path, lock: lock}
		if err := a.give(path); err != nil {
			return nil, errors.Join(err, f.remove())
		}
		return f, nil
	}
}

// sweep removes what killed processes left in parent: folders whose starter and
// keeper are both gone, and a server that outlived them. What cannot be removed
// is left to the next start.
func sweep(ctx context.Context, parent string, a account) {
	// The only error is a malformed pattern.
	paths, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || !a.owns(info) {
			continue
		}
		lock, err := flock(path)
		if err != nil || lock == nil {
			continue
		}
		f := &folder{path: path, lock: lock}
		if err := f.stop(ctx, a); err != nil {
			_ = lock.Close()
			continue
		}
		_ = f.remove()
	}
}

func (f *folder) data() string { return filepath.Join(f.path, "data") }
func (f *folder) log() string  { return filepath.Join(f.path, "log") }

// makeData makes the data folder, empty, since its lock comes before its content.
func (f *folder) makeData(a account) error {
	if err := os.Mkdir(f.data(), 0o700); err != nil {
		return err
	}
	return a.give(f.data())
}

func (f *folder) remove() error {
	return errors.Join(os.RemoveAll(f.path), f.lock.Close())
}

// stop ends a server that nobody keeps any more; none running is no error.
func (f *folder) stop(ctx context.Context, a account) error {
	if gone, err := f.deserted(); gone || err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(f.data(), "postmaster.pid"))
	if err != nil {
		return err
	}
	pid, _, _ := strings.Cut(string(content), "\n")
	// Sent by the account, so that it can hit no process of anybody else. Two
	// signals for the reason given at script.
	if err := a.command(ctx, "/bin/sh", "-c", `kill -s TERM "$1" && { kill -s QUIT "$1"; true; }`, "sh", pid).Run(); err != nil {
		return fmt.Errorf("stop the server of %s: %w", f.path, err)
	}
	return f.awaitDeserted(ctx)
}

// awaitDeserted waits until no process of the server is left.
func (f *folder) awaitDeserted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := await(ctx, f.deserted); err != nil {
		return fmt.Errorf("wait for the server of %s to end: %w", f.path, err)
	}
	return nil
}

// deserted says whether no process of the server is left.
func (f *folder) deserted() (bool, error) {
	lock, err := flock(f.data())
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil || lock == nil {
		return false, err
	}
	return true, lock.Close()
}

// lockData locks the data folder, in which no server runs. A lock that this process
// has just released may still be held: a child process has a copy of our open files
// between fork and exec.
func (f *folder) lockData(ctx context.Context) (lock *os.File, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = await(ctx, func() (bool, error) {
		lock, err = flock(f.data())
		return lock != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("lock the data folder of %s: %w", f.path, err)
	}
	return lock, nil
}

// flock locks a folder until the last copy of the returned file is closed. It
// returns nil if somebody else has it, and fs.ErrNotExist if it is not there.
func flock(path string) (*os.File, error) {
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
	// It may have been removed between the two calls.
	held, err := file.Stat()
	if err == nil {
		var named os.FileInfo
		if named, err = os.Stat(path); err == nil && !os.SameFile(held, named) {
			err = &fs.PathError{Op: "flock", Path: path, Err: fs.ErrNotExist}
		}
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// await asks until the answer is yes, an error, or the end of ctx.
func await(ctx context.Context, done func() (bool, error)) error {
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
