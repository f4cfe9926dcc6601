package local

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/xi2/xz"
)

const (
	// downloaded is the version that is downloaded where the machine has none.
	downloaded = "17.11.0"
	// mavenCentral is where it comes from unless POSTGRES_BINARIES_URL names a mirror.
	mavenCentral = "https://repo1.maven.org/maven2"
	// largestArchive bounds what is read before its checksum is known.
	largestArchive = 256 << 20 // bytes
	// downloadTimeout ends a download that does not advance.
	downloadTimeout = 10 * time.Minute
)

// archiveSums are the SHA-256 of the archives of Maven Central, by platform. A repository
// cannot hand over another archive.
var archiveSums = map[string]string{
	"darwin-amd64":       "d464ff178e9860ba204662ac23fa547504b7fd392392ff2fb92e3fd73b5bdb64",
	"darwin-arm64v8":     "a1c2786acb0c398f9b2d76806fc52f5dc8b222cbc8e9383a9b9702084daaf3a5",
	"linux-amd64":        "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
	"linux-amd64-alpine": "ace9a6f95b1c98ce84c9841267cd04ebee5d7de5dc7b8fea148ead44f145afbd",
	"linux-arm64v8":      "8b042e0ea418b1927d95399207950da0734d27fe01e29503ade3bdc464ad4c2b",
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

// download returns the installation in the cache, and downloads it if there is none.
func (m machine) download(ctx context.Context, a account) (installation, error) {
	if m.archiveSum == "" {
		return installation{}, fmt.Errorf("PostgreSQL %s was not built for %s", downloaded, platform())
	}
	artifact := "embedded-postgres-binaries-" + platform()
	url := fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%[2]s-%[3]s.jar", m.repository, artifact, downloaded)
	runs := func(folder string) error {
		_, err := inspect(ctx, a, filepath.Join(folder, "bin"))
		return err
	}
	folder, err := m.cached("postgresql-"+downloaded+"-"+platform(), runs, func(fresh string) error {
		archive, err := fetch(ctx, url, m.archiveSum)
		if err == nil {
			err = unpack(ctx, archive, fresh)
		}
		if err != nil {
			return fmt.Errorf("download %s: %w", url, err)
		}
		// Whatever the umask is: for root the server's account is another one.
		return account{}.run(ctx, "chmod", "-R", "a+rX", fresh)
	})
	if err != nil {
		return installation{}, err
	}
	return inspect(ctx, a, filepath.Join(folder, "bin"))
}

// fetch returns the content of a URL if it has the expected SHA-256.
func fetch(ctx context.Context, url, wantSum string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Close = true // no goroutine stays for the connection
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New("the answer is " + response.Status)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, largestArchive))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	if got := hex.EncodeToString(sum[:]); got != wantSum {
		return nil, fmt.Errorf("its SHA-256 is %s, expected %s", got, wantSum)
	}
	return content, nil
}

// unpack fills a folder from an archive whose checksum is right: a zip file that holds one
// tar file, which is compressed with xz.
func unpack(ctx context.Context, archive []byte, into string) error {
	files, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return err
	}
	names, err := fs.Glob(files, "*.txz")
	if err != nil || len(names) != 1 {
		return errors.Join(err, fmt.Errorf("it holds %d files *.txz, expected one", len(names)))
	}
	compressed, err := files.Open(names[0])
	if err != nil {
		return err
	}
	defer func() { _ = compressed.Close() }()
	plain, err := xz.NewReader(compressed, 0)
	if err != nil {
		return err
	}
	tar := account{}.command(ctx, "tar", "-xo", "-C", into)
	tar.Stdin = plain
	if out, err := tar.CombinedOutput(); err != nil {
		return fmt.Errorf("run tar: %w: %s", err, lastLines(out))
	}
	return nil
}
