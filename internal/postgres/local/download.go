package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// downloaded is the version fetched where the machine has none.
const downloaded = embeddedpostgres.V17

// download returns the installation kept in the cache, after fetching it where
// it is not there yet. Processes that come at the same time fetch it once.
//
// When ctx ends first the fetch goes on in the background, since the library
// cannot be stopped, and what it unpacked is used or removed by a later start.
func (p places) download(ctx context.Context, a account, spare string) (binaries, error) {
	cache := p.cache
	if cache == "" {
		cache = filepath.Join(spare, "download")
		if err := os.Mkdir(cache, 0o755); err != nil {
			return binaries{}, err
		}
	}
	installed := filepath.Join(cache, fmt.Sprintf("postgresql-%s-%s-%s", downloaded, runtime.GOOS, runtime.GOARCH))
	if b, err := inspect(ctx, a, filepath.Join(installed, "bin")); err == nil {
		return b, nil
	}
	lock, err := lockCache(ctx, cache)
	if err != nil {
		return binaries{}, err
	}
	fetched := make(chan error, 1)
	go func() {
		defer func() { _ = lock.Close() }()
		fetched <- p.fetch(ctx, a, cache, installed)
	}()
	select {
	case err := <-fetched:
		if err != nil {
			return binaries{}, err
		}
		return inspect(ctx, a, filepath.Join(installed, "bin"))
	case <-ctx.Done():
		return binaries{}, context.Cause(ctx)
	}
}

// fetch unpacks an installation beside its final name and renames it there, so
// that a folder of that name is always complete. The caller holds the cache.
func (p places) fetch(ctx context.Context, a account, cache, installed string) error {
	if _, err := inspect(ctx, a, filepath.Join(installed, "bin")); err == nil {
		return nil
	}
	fresh, err := os.MkdirTemp(cache, freshPrefix+"*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(fresh) }() // else the next writer removes it
	unpacked := filepath.Join(fresh, "postgresql")
	if err := p.unpack(fresh, unpacked); err != nil {
		return err
	}
	if err := readable(fresh); err != nil {
		return fmt.Errorf("let other accounts read the download: %w", err)
	}
	if _, err := inspect(ctx, a, filepath.Join(unpacked, "bin")); err != nil {
		return err
	}
	if err := os.RemoveAll(installed); err != nil {
		return err
	}
	return os.Rename(unpacked, installed)
}

// unpack has the library download the archive and unpack it. The library means
// to start a server of its own next. It never gets there: its initdb refuses the
// encoding (and root, before that), so nothing of it can be left running.
func (p places) unpack(fresh, unpacked string) error {
	server := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(downloaded).
		BinaryRepositoryURL(p.repository).
		CachePath(filepath.Join(fresh, "archive")).
		RuntimePath(filepath.Join(fresh, "run")).
		BinariesPath(unpacked).
		Encoding("none: unpack only").
		Port(0).
		Logger(io.Discard))
	err := server.Start()
	removeLog()
	runtime.KeepAlive(server) // it holds the log open
	if err == nil {
		return errors.Join(errors.New("the download started a server of its own"), server.Stop())
	}
	if isProgram(filepath.Join(unpacked, "bin", "initdb")) {
		return nil
	}
	return err
}

// removeLog removes the log that the library leaves in os.TempDir(). It is told
// from those of other processes by being open in this one.
func removeLog() {
	// The only error is a malformed pattern.
	logs, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	for _, log := range logs {
		var named, opened syscall.Stat_t
		if syscall.Lstat(log, &named) != nil {
			continue
		}
		for fd := range 1 << 16 {
			if syscall.Fstat(fd, &opened) == nil && opened.Dev == named.Dev && opened.Ino == named.Ino {
				_ = os.Remove(log)
				break
			}
		}
	}
}

// readable lets every account read what we may read, and run what we may run: the
// server's account is another one where we are root, whatever our umask is.
func readable(folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm()
		return os.Chmod(path, mode|(mode&0o500)>>3|(mode&0o500)>>6)
	})
}
