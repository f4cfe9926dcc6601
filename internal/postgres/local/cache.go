package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// freshPrefix names what is being made in the cache and has no final name yet.
const freshPrefix = "new-"

// initdbFlags are part of a template's key. The data folder needs no sync: one
// that a power cut leaves behind is removed, never used again.
func initdbFlags() []string {
	return []string{"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"}
}

// cacheFolder returns the folder that outlives servers: the user's cache, or for
// root the machine's, which other accounts can read. It is "" where neither can
// be made: then each start runs initdb, and downloads for itself.
func cacheFolder() string {
	parent, err := os.UserCacheDir()
	if os.Getuid() == 0 {
		parent, err = "/var/cache", nil
		if runtime.GOOS == "darwin" {
			parent = "/Library/Caches"
		}
	}
	if err != nil {
		return ""
	}
	folder := filepath.Join(parent, "payonce")
	if os.MkdirAll(folder, 0o755) != nil || os.Chmod(folder, 0o755) != nil {
		return ""
	}
	return folder
}

// lockCache waits until no other process writes to the cache, and removes what
// one that was killed had not finished. Closing the file lets the next one in.
func lockCache(ctx context.Context, cache string) (*os.File, error) {
	var lock *os.File
	err := await(ctx, func() (bool, error) {
		var err error
		lock, err = flock(cache)
		return lock != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the cache %s: %w", cache, err)
	}
	unfinished, _ := filepath.Glob(filepath.Join(cache, freshPrefix+"*"))
	for _, folder := range unfinished {
		if err := os.RemoveAll(folder); err != nil {
			_ = lock.Close()
			return nil, err
		}
	}
	return lock, nil
}

// template returns the result of initdb for this installation and account, to be
// copied. It is made beside its final name and renamed there, so that it is
// complete or absent.
func (b binaries) template(ctx context.Context, a account, cache string) (string, error) {
	key := sha256.Sum256(fmt.Append(nil, b.folder, b.version, a.uid, initdbFlags()))
	template := filepath.Join(cache, "template-"+hex.EncodeToString(key[:6]))
	if isCluster(template) {
		return template, nil
	}
	lock, err := lockCache(ctx, cache)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if isCluster(template) {
		return template, nil
	}
	fresh, err := os.MkdirTemp(cache, freshPrefix+"*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(fresh) }() // else the next writer removes it
	if err := a.give(fresh); err != nil {
		return "", err
	}
	if err := b.initdb(ctx, a, fresh); err != nil {
		return "", err
	}
	if err := os.RemoveAll(template); err != nil {
		return "", err
	}
	return template, os.Rename(fresh, template)
}

func (b binaries) initdb(ctx context.Context, a account, data string) error {
	initdb := a.command(ctx, filepath.Join(b.folder, "initdb"), append(initdbFlags(), "--pgdata="+data)...)
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w: %s", initdb.Path, err, lastLines(string(out)))
	}
	return nil
}

// isCluster says whether a folder holds what initdb makes first and last.
func isCluster(folder string) bool {
	for _, name := range []string{"PG_VERSION", "global/pg_control"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			return false
		}
	}
	return true
}

// lastLines is the end of what a program said, on one line.
func lastLines(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], "; ")
}
