package local

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/payonce/payonce/internal/postgres"
)

// machine is where installations of PostgreSQL are looked for, and where files are kept.
type machine struct {
	bin        string   // PG_BIN
	path       string   // PATH
	patterns   []string // of package folders; in each the newest version wins
	repository string   // Maven repository to download from
	archiveSum string   // SHA-256 of what is downloaded; "": nothing is
	cache      string   // folder of downloads and templates; "": the server's own
	temp       string   // folder that the folders of servers are made in
}

func thisMachine() machine {
	return machine{
		bin:        os.Getenv("PG_BIN"),
		path:       os.Getenv("PATH"),
		patterns:   []string{"/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin"},
		repository: strings.TrimSuffix(cmp.Or(os.Getenv("POSTGRES_BINARIES_URL"), mavenCentral), "/"),
		archiveSum: archiveSums[platform()],
		cache:      cacheFolder(),
		temp:       os.TempDir(),
	}
}

// installation is the programs of one PostgreSQL.
type installation struct {
	bin     string // folder
	version string // as the server prints it
	major   int
}

// find returns the first installation that the account can run and that is new enough,
// else a downloaded one. The error is one sentence that says what to install.
func (m machine) find(ctx context.Context, a account) (installation, error) {
	var reasons []string
	for _, folder := range m.folders(ctx, a) {
		found, err := inspect(ctx, a, folder)
		switch {
		case err == nil && found.major >= postgres.Oldest:
			return found, nil
		case err == nil:
			reasons = append(reasons, fmt.Sprintf("version %d in %s is too old", found.major, folder))
		case !errors.Is(err, fs.ErrNotExist):
			reasons = append(reasons, err.Error())
		}
	}
	found, err := m.download(ctx, a)
	if err == nil || ctx.Err() != nil {
		return found, cmp.Or(context.Cause(ctx), err)
	}
	return installation{}, fmt.Errorf("no PostgreSQL %d or newer on this machine and none to download (%s): install it with apt-get install postgresql or brew install postgresql, or set PG_BIN to the folder of its programs or POSTGRES_BINARIES_URL to a Maven repository in reach",
		postgres.Oldest, strings.Join(append([]string{err.Error()}, reasons...), "; "))
}

// folders are the folders to look in, in this order: the last names of package folders first, which are
// the newest versions.
func (m machine) folders(ctx context.Context, a account) (folders []string) {
	// pg_config comes with the client library, so the folder that it prints may hold no server.
	config := a.command(ctx, "/bin/sh", "-c", "pg_config --bindir")
	config.Env = append(config.Env, "PATH="+m.path)
	configured, _ := config.Output() // "" where there is no pg_config
	bin := m.bin
	if bin != "" {
		bin, _ = filepath.Abs(bin) // the account's folder is another one
	}
	folders = append(append([]string{bin}, filepath.SplitList(m.path)...), strings.TrimSpace(string(configured)))
	for _, pattern := range m.patterns {
		matches, _ := filepath.Glob(pattern) // a constant, so never malformed
		slices.Reverse(matches)
		folders = append(folders, matches...)
	}
	return slices.DeleteFunc(folders, func(folder string) bool { return !filepath.IsAbs(folder) })
}

// inspect reads the version of the installation in a folder. It runs the server as the
// account, so an installation that the account cannot run is an error. A folder without a
// server is fs.ErrNotExist.
func inspect(ctx context.Context, a account, bin string) (installation, error) {
	for _, name := range []string{"postgres", "initdb"} {
		info, err := os.Stat(filepath.Join(bin, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			return installation{}, fmt.Errorf("look for %s in %s: %w", name, bin, fs.ErrNotExist)
		}
	}
	out, err := a.command(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return installation{}, fmt.Errorf("run %s/postgres --version: %w", bin, err)
	}
	version := strings.TrimSpace(string(out)) // postgres (PostgreSQL) 17.5 (Debian …)
	_, number, _ := strings.Cut(version, ") ")
	digits := strings.IndexFunc(number+".", func(r rune) bool { return r < '0' || r > '9' })
	major, err := strconv.Atoi(number[:digits])
	if err != nil {
		return installation{}, fmt.Errorf("read the version of %s/postgres in %q: %w", bin, version, err)
	}
	return installation{bin, version, major}, nil
}

// cacheFolder returns the folder that outlives servers: the user's cache, or for root the
// machine's, which other accounts can read. It is "" where there can be none.
func cacheFolder() string {
	parent, err := os.UserCacheDir()
	if os.Getuid() == 0 {
		parent, err = "/var/cache", nil
	}
	folder := filepath.Join(parent, "payonce")
	if err != nil || os.MkdirAll(folder, 0o755) != nil || os.Chmod(folder, 0o755) != nil {
		return ""
	}
	return folder
}

// cached returns a folder of the cache that check accepts. If there is none, it lets fill make one in a
// folder that does not outlive the process, and renames it, so that a folder is complete or absent.
// Processes that need it at the same time may each make one, of which one stays.
func (m machine) cached(name string, check, fill func(folder string) error) (string, error) {
	final := filepath.Join(m.cache, name)
	if check(final) == nil {
		return final, nil
	}
	place, err := NewDir(m.cache, "new-")
	if err != nil {
		return "", err
	}
	defer func() { _ = place.Close() }()
	fresh := filepath.Join(place.Path, name)
	err = errors.Join(os.Chmod(place.Path, 0o755), os.Mkdir(fresh, 0o755))
	if err == nil {
		err = fill(fresh)
	}
	if err == nil {
		err = check(fresh)
	}
	if err == nil && os.Rename(fresh, final) != nil && check(final) != nil { // what is there is broken
		err = errors.Join(os.RemoveAll(final), os.Rename(fresh, final))
	}
	return final, err
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
	return m.cached("template-"+hex.EncodeToString(key[:6]), complete, func(fresh string) error {
		if err := a.give(fresh); err != nil {
			return err
		}
		return a.run(ctx, filepath.Join(i.bin, "initdb"), append(initdbFlags, "--pgdata="+fresh)...)
	})
}
