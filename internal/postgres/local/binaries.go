package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/postgres"
)

// binaries are the programs of one PostgreSQL installation.
type binaries struct {
	folder  string
	version string // as the server prints it
	major   int
}

// places is where an installation is looked for, and where files are kept.
type places struct {
	bin        string        // PG_BIN
	path       string        // PATH
	patterns   []string      // of package folders; in each the newest version wins
	repository string        // Maven repository to download from
	archiveSum string        // SHA-256 of what is downloaded; "": nothing is
	stall      time.Duration // without any data, after which a download ends
	cache      string        // folder that downloads and templates are kept in, or ""
	temp       string        // folder that the folders of servers are made in
}

// machine is every place of this machine.
func machine() places {
	return places{
		bin:  os.Getenv("PG_BIN"),
		path: os.Getenv("PATH"),
		patterns: []string{
			"/usr/lib/postgresql/*/bin",
			"/opt/homebrew/opt/postgresql*/bin",
			"/usr/local/opt/postgresql*/bin",
		},
		repository: strings.TrimSuffix(cmp.Or(os.Getenv("POSTGRES_BINARIES_URL"), mavenCentral), "/"),
		archiveSum: archiveSums()[platform()],
		stall:      stallTimeout,
		cache:      cacheFolder(),
		temp:       os.TempDir(),
	}
}

// find returns the first installation that the account can run and that is new
// enough, else downloads one. Without a cache the download is unpacked below
// spare. The error is one sentence that says what to install.
func (p places) find(ctx context.Context, a account, spare string) (binaries, error) {
	var passed []string
	for folders := range p.folders(ctx, a) {
		var best binaries
		for _, folder := range folders {
			b, err := inspect(ctx, a, folder)
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				passed = append(passed, err.Error())
			case b.major < postgres.Oldest:
				passed = append(passed, fmt.Sprintf("version %d in %s is too old", b.major, folder))
			case b.major > best.major:
				best = b
			}
		}
		if best.major != 0 {
			return best, nil
		}
	}
	if ctx.Err() != nil {
		return binaries{}, context.Cause(ctx)
	}
	b, err := p.download(ctx, a, spare)
	if err != nil && ctx.Err() == nil {
		var why strings.Builder
		for _, reason := range passed {
			why.WriteString("; " + reason)
		}
		return binaries{}, fmt.Errorf("no PostgreSQL %d or newer on this machine and none to download (%w%s): install it with apt-get install postgresql or brew install postgresql, or set PG_BIN to the folder of its programs or POSTGRES_BINARIES_URL to a Maven repository in reach",
			postgres.Oldest, err, why.String())
	}
	return b, err
}

// folders yields the folders to look in, in groups: the first group that holds
// a usable installation decides.
func (p places) folders(ctx context.Context, a account) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		// A relative folder is ours: the account's programs start in another.
		if bin, err := filepath.Abs(p.bin); err == nil && p.bin != "" && !yield([]string{bin}) {
			return
		}
		for _, folder := range filepath.SplitList(p.path) {
			if filepath.IsAbs(folder) && !yield([]string{folder}) {
				return
			}
		}
		if folder := p.config(ctx, a); folder != "" && !yield([]string{folder}) {
			return
		}
		for _, pattern := range p.patterns {
			// The only error is a malformed pattern, and these are constants.
			matches, _ := filepath.Glob(pattern)
			if !yield(matches) {
				return
			}
		}
	}
}

// config asks the first pg_config on the path where the server's programs are.
// It may know without them being there: it comes with the client library.
func (p places) config(ctx context.Context, a account) string {
	for _, folder := range filepath.SplitList(p.path) {
		program := filepath.Join(folder, "pg_config")
		if !filepath.IsAbs(folder) || !isProgram(program) {
			continue
		}
		out, err := a.command(ctx, program, "--bindir").Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	return ""
}

// inspect reads the version of the installation in a folder, as the account, so
// that one which the account cannot run is an error. No server there is
// fs.ErrNotExist.
func inspect(ctx context.Context, a account, folder string) (binaries, error) {
	for _, name := range []string{"postgres", "initdb"} {
		if !isProgram(filepath.Join(folder, name)) {
			return binaries{}, fmt.Errorf("look for %s in %s: %w", name, folder, fs.ErrNotExist)
		}
	}
	out, err := a.command(ctx, filepath.Join(folder, "postgres"), "--version").Output()
	if err != nil {
		return binaries{}, fmt.Errorf("run %s/postgres --version: %w", folder, err)
	}
	version := strings.TrimSpace(string(out)) // postgres (PostgreSQL) 17.5 (Debian …)
	_, number, _ := strings.Cut(version, ") ")
	digits := strings.IndexFunc(number+".", func(r rune) bool { return r < '0' || r > '9' })
	major, err := strconv.Atoi(number[:digits])
	if err != nil {
		return binaries{}, fmt.Errorf("read the version of %s/postgres in %q: %w", folder, version, err)
	}
	return binaries{folder: folder, version: version, major: major}, nil
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
