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

func TestDownload(t *testing.T) {
	t.Parallel()
	t.Run("a fetched server runs, and is fetched once", func(t *testing.T) {
		t.Parallel()
		pgtest.Long(t, "it copies a whole server and starts it")
		repository, fetched := serve(t, wholeServer(t), "")
		cache := publicFolder(t)
		places := local.Places{Path: "/nonexistent", Repository: repository, Cache: cache}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				s, err := places.Start(t.Context(), local.Options{})
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.CreateDatabase(t.Context(), "fetched"); err != nil {
					t.Error(err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := fetched.Load(); n != 1 {
			t.Errorf("the archive was fetched %d times, want once", n)
		}
		names := entries(t, cache)
		if len(names) != 2 || !strings.HasPrefix(names[0], "postgresql-") || !strings.HasPrefix(names[1], "template-") {
			t.Errorf("the cache holds %v, want a server and a template", names)
		}
		mustHaveNoLog(t)
	})

	t.Run("without a cache it is fetched for one server", func(t *testing.T) {
		t.Parallel()
		pgtest.Long(t, "it copies a whole server and starts it")
		repository, fetched := serve(t, wholeServer(t), "")
		s, err := local.Places{Path: "/nonexistent", Repository: repository}.Start(t.Context(), local.Options{})
		if err != nil {
			t.Fatal(err)
		}
		left := watch(t, s.Folder())
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		left.mustBeNothing(t)
		if n := fetched.Load(); n != 1 {
			t.Errorf("the archive was fetched %d times, want once", n)
		}
	})

	t.Run("what a killed download left is removed", func(t *testing.T) {
		t.Parallel()
		repository, _ := serve(t, noServer(t), "")
		cache := publicFolder(t)
		if err := os.MkdirAll(filepath.Join(cache, "new-1234", "postgresql", "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := (local.Places{Repository: repository, Cache: cache}).Find(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		if names := entries(t, cache); len(names) != 1 || !strings.HasPrefix(names[0], "postgresql-") {
			t.Errorf("the cache holds %v, want a server alone", names)
		}
	})

	t.Run("a wrong checksum is refused", func(t *testing.T) {
		t.Parallel()
		repository, _ := serve(t, noServer(t), strings.Repeat("0", 64))
		cache := publicFolder(t)
		_, err := local.Places{Repository: repository, Cache: cache}.Find(t.Context(), "")
		if err == nil || !strings.Contains(err.Error(), "checksums do not match") {
			t.Errorf("the error is %v", err)
		}
		mustBeEmpty(t, cache)
		mustHaveNoLog(t)
	})
}

// serve is a Maven repository that answers every request for an archive with
// this one. It counts them.
func serve(t *testing.T, jar []byte, checksum string) (string, *atomic.Int64) {
	t.Helper()
	if checksum == "" {
		sum := sha256.Sum256(jar)
		checksum = hex.EncodeToString(sum[:])
	}
	var fetched atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := []byte(checksum)
		if !strings.HasSuffix(r.URL.Path, ".sha256") {
			answer = jar
			fetched.Add(1)
		}
		if _, err := w.Write(answer); err != nil {
			t.Errorf("answer %s: %v", r.URL.Path, err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, &fetched
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

// noServer is an archive of programs that only look like a server's.
func noServer(t *testing.T) []byte {
	t.Helper()
	packed := t.TempDir()
	fake(t, filepath.Join(packed, "bin"), "postgres", "echo 'postgres (PostgreSQL) 17.0'")
	fake(t, filepath.Join(packed, "bin"), "initdb", "exit 1")
	if err := os.Mkdir(filepath.Join(packed, "lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	return jar(t, packed)
}

// jar is a folder with bin and lib as the repository has it.
func jar(t *testing.T, packed string) []byte {
	t.Helper()
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skipf("not run: there is no xz to pack a server with: %v", err)
	}
	pack := exec.CommandContext(t.Context(), "/bin/sh", "-c", `set -e
tar -C "$1" -cf "$2/server.tar" bin lib
xz -1 --stdout "$2/server.tar"`, "sh", packed, t.TempDir())
	var stderr bytes.Buffer
	pack.Stderr = &stderr
	archive, err := pack.Output()
	if err != nil {
		t.Fatalf("pack a server: %v: %s", err, stderr.String())
	}
	var zipped bytes.Buffer
	out := zip.NewWriter(&zipped)
	file, err := out.Create("postgres-any.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(archive); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return zipped.Bytes()
}

// mustHaveNoLog looks for the log that the library means to leave behind.
func mustHaveNoLog(t *testing.T) {
	t.Helper()
	eventually(t, "no log of the library is left", func() bool {
		logs, err := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
		return err == nil && len(logs) == 0
	})
}
