package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// cacheFolder returns the folder that outlives servers: the user's cache, or for root the
// machine's, which other accounts can read. It is "" where there can be none.
func cacheFolder() string {
	parent, err := os.UserCacheDir()
	if os.Getuid() == 0 {
		parent, err = "/var/cache", nil
		if runtime.GOOS == "darwin" {
			parent = "/Library/Caches"
		}
	}
	folder := filepath.Join(parent, "payonce")
	if err != nil || os.MkdirAll(folder, 0o755) != nil || os.Chmod(folder, 0o755) != nil {
		return ""
	}
	return folder
}

// cached returns a folder of the cache that check accepts. If there is none, it lets fill
// make one beside the final name and renames it, so that a folder is complete or absent.
// Processes that need the same folder at the same time fill it once.
func (m machine) cached(ctx context.Context, name string, check, fill func(folder string) error) (string, error) {
	final, fresh := filepath.Join(m.cache, name), filepath.Join(m.cache, "new")
	if check(final) == nil {
		return final, nil
	}
	lock, err := os.Open(m.cache)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	err = poll(ctx, func() (bool, error) {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return "", fmt.Errorf("lock %s: %w", m.cache, err)
	}
	if check(final) == nil {
		return final, nil
	}
	// The lock is ours, so a process that was killed has left what is there.
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o755)); err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	if err := fill(fresh); err != nil {
		return "", err
	}
	if err := check(fresh); err != nil {
		return "", err
	}
	return final, errors.Join(os.RemoveAll(final), os.Rename(fresh, final))
}

// initdbFlags are a part of the template's name.
var initdbFlags = []string{"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"}

// template returns what initdb makes with an installation, to be copied.
func (m machine) template(ctx context.Context, a account, i installation) (string, error) {
	key := sha256.Sum256(fmt.Append(nil, i.bin, i.version, a.uid(), initdbFlags))
	complete := func(folder string) error {
		_, err := os.Stat(filepath.Join(folder, "global", "pg_control"))
		return err
	}
	return m.cached(ctx, "template-"+hex.EncodeToString(key[:6]), complete, func(fresh string) error {
		if err := a.give(fresh); err != nil {
			return err
		}
		return a.run(ctx, filepath.Join(i.bin, "initdb"), append(initdbFlags, "--pgdata="+fresh)...)
	})
}
