package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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
	held, err := lock(ctx, m.cache)
	if err != nil {
		return "", err
	}
	defer func() { _ = held.Close() }()
	if check(final) == nil {
		return final, nil
	}
	// The lock is ours, so a process that was killed has left what is there.
	if err := os.RemoveAll(fresh); err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return "", err
	}
	if err := fill(fresh); err != nil {
		return "", err
	}
	if err := check(fresh); err != nil {
		return "", err
	}
	if err := os.RemoveAll(final); err != nil {
		return "", err
	}
	return final, os.Rename(fresh, final)
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
		return runCommand(a.command(ctx, filepath.Join(i.bin, "initdb"), append(initdbFlags, "--pgdata="+fresh)...))
	})
}
