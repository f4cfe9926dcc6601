package local

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestFind_takesTheFirstUsableServer(t *testing.T) {
	t.Parallel()
	root := publicFolder(t)
	in := func(folder string) string { return filepath.Join(root, folder) }
	for folder, version := range map[string]string{
		"bin/16": "16.1", "path/17": "17.2 (Debian 17.2-1)", "configured/18": "18beta1", "old/13": "13.9",
		"packages/15/bin": "15.0", "packages/17/bin": "17devel",
		"brew/postgresql/bin": "14.1", "brew/postgresql@16/bin": "16.3", "brew/postgresql@17/bin": "17.1",
	} {
		fakeServer(t, in(folder), version)
	}
	fake(t, in("config"), "pg_config", "echo "+in("configured/18"))
	fake(t, in("lying"), "pg_config", "echo "+in("nowhere"))
	fake(t, in("broken"), "postgres", "exit 1")
	fake(t, in("broken"), "initdb", "exit 1")

	path := strings.Join([]string{in("empty"), in("path/17"), in("config")}, ":")
	patterns := []string{in("packages/*/bin"), in("brew/postgresql*/bin")}
	for name, test := range map[string]struct {
		m    machine
		want string
	}{
		"PG_BIN comes first":                        {machine{bin: in("bin/16"), path: path}, "bin/16"},
		"then PATH":                                 {machine{path: path}, "path/17"},
		"then what pg_config says":                  {machine{path: in("config"), patterns: patterns}, "configured/18"},
		"then the newest package":                   {machine{path: in("lying"), patterns: patterns}, "packages/17/bin"},
		"then the newest of Homebrew":               {machine{patterns: patterns[1:]}, "brew/postgresql@17/bin"},
		"an old PG_BIN is passed over":              {machine{bin: in("old/13"), path: path}, "path/17"},
		"a server that does not run is passed over": {machine{bin: in("broken"), path: path}, "path/17"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := test.m.find(t.Context(), theAccount(t))
			must(t, err)
			if got.bin != in(test.want) {
				t.Errorf("found %s, want %s", got.bin, in(test.want))
			}
		})
	}
}

func TestStart_withoutPostgreSQL_saysWhatToInstall(t *testing.T) {
	t.Parallel()
	old := filepath.Join(publicFolder(t), "old")
	fakeServer(t, old, "13.9")
	archive := looksLikeAServer(t)
	good, readme := sum(archive), zipped(t, "readme.txt", nil)
	missing := serve(t, http.NotFoundHandler())

	for name, test := range map[string]struct{ repository, sum, why string }{
		"the archive is missing":      {missing.URL, good, "the answer is 404 Not Found"},
		"the archive is another one":  {serve(t, answer(archive)).URL, strings.Repeat("0", 64), "its SHA-256 is " + good + ", expected 000"},
		"the archive holds no server": {serve(t, answer(readme)).URL, sum(readme), "it holds 0 files *.txz"},
		"no checksum is known":        {serve(t, answer(archive)).URL, "", "was not built for"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := machine{bin: old, path: "/nonexistent", repository: test.repository, archiveSum: test.sum, cache: publicFolder(t), temp: os.TempDir()}
			_, err := m.start(t.Context(), Options{})
			if err == nil {
				t.Fatal("a server was started out of nothing")
			}
			for _, part := range []string{"no PostgreSQL 15 or newer", "apt-get install postgresql", "PG_BIN", test.why, "version 13 in " + old + " is too old"} {
				if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
					t.Errorf("the sentence does not say %q: %v", part, err)
				}
			}
			mustBeEmpty(t, m.cache)
		})
	}
}

func TestFind_downloadsAServerAndKeepsIt(t *testing.T) {
	t.Parallel()
	archive := looksLikeAServer(t)
	var downloads atomic.Int64
	repository := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		downloads.Add(1)
		if !strings.HasPrefix(r.URL.Path, "/io/zonky/test/postgres/embedded-postgres-binaries-") || !strings.HasSuffix(r.URL.Path, ".jar") {
			t.Errorf("%s is no address of an archive in a Maven repository", r.URL)
		}
		answer(archive)(w, r)
	}))
	m := machine{repository: repository.URL, archiveSum: sum(archive), cache: publicFolder(t)}
	must(t, os.MkdirAll(filepath.Join(m.cache, "new-left", "bin", "postgres"), 0o755)) // by a download that was killed
	find := func() {
		if found, err := m.find(t.Context(), theAccount(t)); err != nil || found.major != 17 {
			t.Errorf("found %v, %v", found, err)
		}
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(find)
	}
	wg.Wait()
	before := downloads.Load()
	if find(); downloads.Load() != before {
		t.Error("the archive was downloaded again")
	}
	if names := entries(t, m.cache); len(names) != 1 || !strings.HasPrefix(names[0], "postgresql-") {
		t.Errorf("the cache holds %v, want a server alone", names)
	}
}

// fake writes a program. Another process writes it: a file that is open for writing here
// could not be run, as a child that was forked meanwhile may hold it open.
func fake(t *testing.T, folder, name, script string) {
	t.Helper()
	must(t, os.MkdirAll(folder, 0o755))
	write := exec.CommandContext(t.Context(), "/bin/sh", "-c", `printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1"`,
		"sh", filepath.Join(folder, name), script)
	if out, err := write.CombinedOutput(); err != nil {
		t.Fatalf("write %s: %v: %s", name, err, out)
	}
}

// fakeServer writes programs that only look like a server's.
func fakeServer(t *testing.T, folder, version string) {
	t.Helper()
	fake(t, folder, "postgres", "echo 'postgres (PostgreSQL) "+version+"'")
	fake(t, folder, "initdb", "exit 1")
}

// serve is an HTTP server until the test's end.
func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server
}

func answer(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }
}

func sum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// looksLikeAServer is an archive as the repository has it.
func looksLikeAServer(t *testing.T) []byte {
	t.Helper()
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skipf("not run: there is no xz to pack a server with: %v", err)
	}
	packed := t.TempDir()
	fakeServer(t, filepath.Join(packed, "bin"), "17.0")
	pack := exec.CommandContext(t.Context(), "/bin/sh", "-c", `set -e
ln -s initdb "$1/bin/link"
tar -C "$1" -cf "$2/server.tar" .
xz -0 --stdout "$2/server.tar"`, "sh", packed, t.TempDir())
	archive, err := pack.Output()
	if err != nil {
		t.Fatalf("pack a server: %v", err)
	}
	return zipped(t, "postgres-any.txz", archive)
}

// zipped is a zip file that holds one file.
func zipped(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var archive bytes.Buffer
	out := zip.NewWriter(&archive)
	file, err := out.Create(name)
	if err == nil {
		_, err = file.Write(content)
	}
	must(t, errors.Join(err, out.Close()))
	return archive.Bytes()
}
