package local_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestStart_withoutPostgreSQL_downloadsItOnce(t *testing.T) {
	pgtest.Long(t, "it copies a whole server and starts it")
	t.Parallel()
	archive := wholeServer(t)
	var downloads atomic.Int64
	repository, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		downloads.Add(1)
		if !strings.HasPrefix(r.URL.Path, "/io/zonky/test/postgres/embedded-postgres-binaries-") || !strings.HasSuffix(r.URL.Path, ".jar") {
			t.Errorf("%s is no address of an archive in a Maven repository", r.URL)
		}
		answer(archive)(w, r)
	}))
	cache := publicFolder(t)
	places := local.Places{Path: "/nonexistent", Repository: repository, ArchiveSum: sum(archive), Cache: cache}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			s, err := places.Start(t.Context(), local.Options{InMemory: true})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.CreateDatabase(t.Context(), "downloaded"); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := downloads.Load(); n != 1 {
		t.Errorf("the archive was downloaded %d times, want once", n)
	}
	names := entries(t, cache)
	if len(names) != 2 || !strings.HasPrefix(names[0], "postgresql-") || !strings.HasPrefix(names[1], "template-") {
		t.Errorf("the cache holds %v, want a server and a template", names)
	}
}

func TestFind_withoutACache_unpacksTheDownloadBesideTheServer(t *testing.T) {
	t.Parallel()
	archive := looksLikeAServer(t)
	repository, _ := serve(t, answer(archive))
	spare := publicFolder(t)
	folder, err := local.Places{Repository: repository, ArchiveSum: sum(archive)}.Find(t.Context(), spare)
	if err != nil || !strings.HasPrefix(folder, spare+"/") {
		t.Errorf("found %s below %s: %v", folder, spare, err)
	}
}

func TestFind_removesWhatAKilledDownloadLeft(t *testing.T) {
	t.Parallel()
	archive := looksLikeAServer(t)
	repository, _ := serve(t, answer(archive))
	cache := publicFolder(t)
	if err := os.MkdirAll(filepath.Join(cache, "new-1234", "postgresql", "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	places := local.Places{Repository: repository, ArchiveSum: sum(archive), Cache: cache}
	if _, err := places.Find(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if names := entries(t, cache); len(names) != 1 || !strings.HasPrefix(names[0], "postgresql-") {
		t.Errorf("the cache holds %v, want a server alone", names)
	}
}

func TestDownload_comesFromTheRepositoryOfTheEnvironment(t *testing.T) {
	t.Setenv("POSTGRES_BINARIES_URL", "")
	if got := local.RepositoryOfThisMachine(); got != "https://repo1.maven.org/maven2" {
		t.Errorf("the default repository is %q", got)
	}
	t.Setenv("POSTGRES_BINARIES_URL", "https://maven.example.com/central/")
	if got := local.RepositoryOfThisMachine(); got != "https://maven.example.com/central" {
		t.Errorf("the repository is %q, not the one of the environment", got)
	}
}

// serve is an HTTP server until the test's end, or until it is closed.
func serve(t *testing.T, h http.Handler) (url string, closeServer func()) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL, server.Close
}

func answer(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }
}

func sum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// wholeServer packs this machine's own server as the repository would.
func wholeServer(t *testing.T) []byte {
	t.Helper()
	folder, err := local.Machine().Find(t.Context(), t.TempDir())
	if err != nil {
		t.Skipf("not run: there is no server to pack: %v", err)
	}
	// Most builds find their other files where they were built to be, but some
	// libraries beside the programs.
	program, err := filepath.EvalSymlinks(filepath.Join(folder, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	packed := t.TempDir()
	fill := exec.CommandContext(t.Context(), "/bin/sh", "-c", `set -e
if [ -d "$1/../share/postgresql" ]; then
	cp -R "$1/.." "$2/all" && mv "$2/all"/* "$2"
	exit
fi
mkdir "$2/bin" "$2/lib"
cp -L "$1/postgres" "$1/initdb" "$2/bin"
for library in "$1"/../lib/*.so "$1"/../lib/*.dylib; do
	if [ -e "$library" ]; then cp -L "$library" "$2/lib"; fi
done`, "sh", filepath.Dir(program), packed)
	if out, err := fill.CombinedOutput(); err != nil {
		t.Fatalf("copy a server: %v: %s", err, out)
	}
	return jar(t, packed)
}

// looksLikeAServer is an archive of programs that only look like a server's.
func looksLikeAServer(t *testing.T) []byte {
	t.Helper()
	packed := t.TempDir()
	fake(t, filepath.Join(packed, "bin"), "postgres", "echo 'postgres (PostgreSQL) 17.0'")
	fake(t, filepath.Join(packed, "bin"), "initdb", "exit 1")
	if err := os.Symlink("initdb", filepath.Join(packed, "bin", "link")); err != nil {
		t.Fatal(err)
	}
	return jar(t, packed)
}

// jar is the content of a folder as the repository has it.
func jar(t *testing.T, packed string) []byte {
	t.Helper()
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skipf("not run: there is no xz to pack a server with: %v", err)
	}
	pack := exec.CommandContext(t.Context(), "/bin/sh", "-c", `set -e
tar -C "$1" -cf "$2/server.tar" .
xz -0 --stdout "$2/server.tar"`, "sh", packed, t.TempDir())
	var stderr bytes.Buffer
	pack.Stderr = &stderr
	archive, err := pack.Output()
	if err != nil {
		t.Fatalf("pack a server: %v: %s", err, stderr.String())
	}
	return zipped(t, "postgres-any.txz", archive)
}

// zipped is a zip file that holds one file.
func zipped(t *testing.T, name string, content []byte) []byte {
	t.Helper()
	var archive bytes.Buffer
	out := zip.NewWriter(&archive)
	file, err := out.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}
