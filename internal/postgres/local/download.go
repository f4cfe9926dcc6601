package local

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// downloaded is the version that is downloaded where the machine has none.
const downloaded = "17.11.0"

// mavenCentral is where it is downloaded from unless POSTGRES_BINARIES_URL names
// a mirror.
const mavenCentral = "https://repo1.maven.org/maven2"

// archiveSums returns the SHA-256 of the archive of every platform that has one.
// They are Maven Central's of 2026-11-23: no repository can hand over another
// archive.
func archiveSums() map[string]string {
	return map[string]string{
		"darwin-amd64":       "d464ff178e9860ba204662ac23fa547504b7fd392392ff2fb92e3fd73b5bdb64",
		"darwin-arm64v8":     "a1c2786acb0c398f9b2d76806fc52f5dc8b222cbc8e9383a9b9702084daaf3a5",
		"linux-amd64":        "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
		"linux-amd64-alpine": "ace9a6f95b1c98ce84c9841267cd04ebee5d7de5dc7b8fea148ead44f145afbd",
		"linux-arm64v8":      "8b042e0ea418b1927d95399207950da0734d27fe01e29503ade3bdc464ad4c2b",
	}
}

// platform names this machine as the repository does.
func platform() string {
	name := runtime.GOOS + "-" + runtime.GOARCH
	if runtime.GOARCH == "arm64" {
		name += "v8"
	}
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		name += "-alpine"
	}
	return name
}

// archiveURL is where Maven's layout puts the archive of this machine.
func (p places) archiveURL() string {
	artifact := "embedded-postgres-binaries-" + platform()
	return fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%[2]s-%[3]s.jar", p.repository, artifact, downloaded)
}

// download returns the installation in the cache. If there is none, it downloads
// one; processes that do so at the same time download it once. Without a cache
// it is unpacked below spare.
func (p places) download(ctx context.Context, a account, spare string) (binaries, error) {
	if p.archiveSum == "" {
		return binaries{}, fmt.Errorf("PostgreSQL %s was not built for %s", downloaded, platform())
	}
	cache := p.cache
	if cache == "" {
		cache = filepath.Join(spare, "download")
		if err := os.Mkdir(cache, 0o755); err != nil {
			return binaries{}, err
		}
	}
	installed := filepath.Join(cache, "postgresql-"+downloaded+"-"+platform())
	if b, err := inspect(ctx, a, filepath.Join(installed, "bin")); err == nil {
		return b, nil
	}
	lock, err := lockCache(ctx, cache)
	if err != nil {
		return binaries{}, err
	}
	defer func() { _ = lock.Close() }()
	if b, err := inspect(ctx, a, filepath.Join(installed, "bin")); err == nil {
		return b, nil
	}
	if err := p.install(ctx, a, cache, installed); err != nil {
		return binaries{}, err
	}
	return inspect(ctx, a, filepath.Join(installed, "bin"))
}

// install downloads and unpacks the archive beside the installation's final name
// and renames it, so that a folder of that name is always complete. The caller
// holds the lock of the cache.
func (p places) install(ctx context.Context, a account, cache, installed string) error {
	fresh, err := os.MkdirTemp(cache, freshPrefix+"*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(fresh) }() // else the next writer removes it
	archive, unpacked := filepath.Join(fresh, "archive"), filepath.Join(fresh, "postgresql")
	if err := p.fetch(ctx, archive); err != nil {
		return err
	}
	if err := unpack(ctx, archive, unpacked); err != nil {
		return fmt.Errorf("unpack %s: %w", p.archiveURL(), err)
	}
	if err := readable(fresh); err != nil {
		return fmt.Errorf("let other accounts read the download: %w", err)
	}
	if _, err := inspect(ctx, a, filepath.Join(unpacked, "bin")); err != nil {
		return fmt.Errorf("the server in %s does not run: %w", p.archiveURL(), err)
	}
	if err := os.RemoveAll(installed); err != nil {
		return err
	}
	return os.Rename(unpacked, installed)
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
