package local_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/postgres/local"
)

func TestFind_takesTheFirstUsableServer(t *testing.T) {
	t.Parallel()
	root := publicFolder(t)
	in := func(folder string) string { return filepath.Join(root, folder) }
	for folder, version := range map[string]string{
		"bin/16": "16.1", "path/17": "17.2 (Debian 17.2-1)", "configured/18": "18beta1", "old/13": "13.9",
		"packages/9.6/bin": "9.6.24", "packages/15/bin": "15.0", "packages/100/bin": "100devel",
		"brew/postgresql/bin": "14.1", "brew/postgresql@16/bin": "16.3", "brew/postgresql@17/bin": "17.1",
	} {
		fake(t, in(folder), "postgres", "echo 'postgres (PostgreSQL) "+version+"'")
		fake(t, in(folder), "initdb", "exit 1")
	}
	fake(t, in("config"), "pg_config", "echo "+in("configured/18"))
	fake(t, in("lying"), "pg_config", "echo "+in("nowhere"))
	fake(t, in("broken"), "postgres", "exit 1")
	fake(t, in("broken"), "initdb", "exit 1")
	fake(t, in("half"), "postgres", "echo 'postgres (PostgreSQL) 17.0'")

	path := strings.Join([]string{in("empty"), in("path/17"), in("config")}, ":")
	all := local.Places{Bin: in("bin/16"), Path: path, Patterns: []string{in("packages/*/bin"), in("brew/postgresql*/bin")}}
	for name, c := range map[string]struct {
		change func(*local.Places)
		want   string
	}{
		"PG_BIN comes first":                        {func(*local.Places) {}, "bin/16"},
		"then PATH":                                 {func(p *local.Places) { p.Bin = "" }, "path/17"},
		"then what pg_config says":                  {func(p *local.Places) { p.Bin, p.Path = "", in("config") }, "configured/18"},
		"then the newest package":                   {func(p *local.Places) { p.Bin, p.Path = "", in("lying") }, "packages/100/bin"},
		"then the newest of Homebrew":               {func(p *local.Places) { p.Bin, p.Path, p.Patterns = "", "", p.Patterns[1:] }, "brew/postgresql@17/bin"},
		"PATH is read from its beginning":           {func(p *local.Places) { p.Bin, p.Path = "", in("packages/15/bin")+":"+path }, "packages/15/bin"},
		"an old PG_BIN is passed over":              {func(p *local.Places) { p.Bin = in("old/13") }, "path/17"},
		"a PG_BIN that is not there is passed over": {func(p *local.Places) { p.Bin = in("nowhere") }, "path/17"},
		"a server that does not run is passed over": {func(p *local.Places) { p.Bin = in("broken") }, "path/17"},
		"one without initdb is passed over":         {func(p *local.Places) { p.Bin = in("half") }, "path/17"},
		"an old one on PATH is passed over":         {func(p *local.Places) { p.Bin, p.Path = "", in("old/13")+":"+path }, "path/17"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			places := all
			c.change(&places)
			got, err := places.Find(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if got != in(c.want) {
				t.Errorf("found %s, want %s", got, in(c.want))
			}
		})
	}
}

func TestStart_withoutPostgreSQL_saysWhatToInstall(t *testing.T) {
	t.Parallel()
	root := publicFolder(t)
	old := filepath.Join(root, "old")
	fake(t, old, "postgres", "echo 'postgres (PostgreSQL) 13.9'")
	fake(t, old, "initdb", "exit 1")

	archive := looksLikeAServer(t)
	good := sum(archive)
	missing, _ := serve(t, http.NotFoundHandler())
	offline, closeServer := serve(t, http.NotFoundHandler())
	closeServer()
	whole, _ := serve(t, answer(archive))
	half, _ := serve(t, answer(archive[:len(archive)/2]))
	noZip, _ := serve(t, answer([]byte("no zip file")))
	empty, _ := serve(t, answer(zipped(t, "readme.txt", nil)))
	silent, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(archive[:1])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))

	for name, c := range map[string]struct{ repository, sum, why string }{
		"the archive is missing":              {missing, good, "the answer is 404 Not Found"},
		"the repository is out of reach":      {offline, good, "connection refused"},
		"the archive is another one":          {whole, strings.Repeat("0", 64), "its SHA-256 is " + good + ", expected 000"},
		"half of the archive arrives":         {half, good, "expected " + good},
		"the rest of the archive never comes": {silent, good, "nothing arrived any more"},
		"the archive is no zip file":          {noZip, sum([]byte("no zip file")), "not a valid zip file"},
		"the archive holds no server":         {empty, sum(zipped(t, "readme.txt", nil)), "there is no .txz in it"},
		"there is no archive for the system":  {whole, "", "was not built for"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := publicFolder(t)
			places := local.Places{Bin: old, Path: "/nonexistent", Repository: c.repository, ArchiveSum: c.sum, Cache: cache}
			if c.repository == silent {
				places.Stall = time.Second
			}
			_, err := places.Start(t.Context(), local.Options{})
			if err == nil {
				t.Fatal("a server was started out of nothing")
			}
			for _, part := range []string{
				"no PostgreSQL 15 or newer", "apt-get install postgresql", "brew install postgresql", "PG_BIN", "POSTGRES_BINARIES_URL",
				c.why, "version 13 in " + old + " is too old",
			} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the sentence does not say %q: %v", part, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the sentence has several lines: %v", err)
			}
			mustBeEmpty(t, cache)
		})
	}
}

// fake writes a program. Another process writes it, since a file that is open
// for writing here could not be run: a child forked meanwhile may hold it open.
func fake(t *testing.T, folder, name, script string) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	write := exec.CommandContext(t.Context(), "/bin/sh", "-c", `printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1"`,
		"sh", filepath.Join(folder, name), script)
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("write %s: %v: %s", name, err, out)
	}
}
