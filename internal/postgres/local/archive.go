package local

import (
	"archive/tar"
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"time"

	"github.com/xi2/xz"
)

const (
	// largestArchive bounds what is written to disk before its checksum is known.
	largestArchive = 256 << 20 // bytes
	// stallTimeout ends a download of which nothing arrives any more.
	stallTimeout = 30 * time.Second
)

var errStalled = errors.New("nothing arrived any more")

// fetch downloads the archive into a new file. It returns an error unless the
// SHA-256 of the content is the expected one.
func (p places) fetch(ctx context.Context, into string) (err error) {
	url := p.archiveURL()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(p.stall, func() { cancel(errStalled) })
	defer stall.Stop()
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = fmt.Errorf("download %s: %w", url, cause)
		}
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("download %s: the answer is %s", url, response.Status)
	}
	file, err := os.OpenFile(into, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	hash := sha256.New()
	body := &watchedReader{from: response.Body, arrived: func() { stall.Reset(p.stall) }}
	size, err := io.Copy(io.MultiWriter(file, hash), io.LimitReader(body, largestArchive+1))
	if err != nil {
		return fmt.Errorf("download %s: %w", url, err)
	}
	if size > largestArchive {
		return fmt.Errorf("download %s: it is larger than %d bytes", url, largestArchive)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != p.archiveSum {
		return fmt.Errorf("download %s: its SHA-256 is %s, expected %s", url, got, p.archiveSum)
	}
	return nil
}

// watchedReader calls arrived whenever a read returned something.
type watchedReader struct {
	from    io.Reader
	arrived func()
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if n > 0 {
		r.arrived()
	}
	return n, err
}

// unpack makes a folder of the archive, a zip file that holds one tar file
// compressed with xz.
func unpack(ctx context.Context, archive, into string) error {
	files, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }()
	for _, file := range files.File {
		if path.Ext(file.Name) != ".txz" {
			continue
		}
		content, err := file.Open()
		if err != nil {
			return err
		}
		return errors.Join(unpackTar(ctx, content, into), content.Close())
	}
	return errors.New("there is no .txz in it")
}

func unpackTar(ctx context.Context, from io.Reader, into string) error {
	if err := os.Mkdir(into, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(into) // no name in the archive leads out of it
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	plain, err := xz.NewReader(from, 0)
	if err != nil {
		return err
	}
	for entries := tar.NewReader(plain); ctx.Err() == nil; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = unpackEntry(root, header, entries)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func unpackEntry(root *os.Root, header *tar.Header, content io.Reader) error {
	name := path.Clean(header.Name)
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		return root.Symlink(header.Linkname, name)
	case tar.TypeReg:
		file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, header.FileInfo().Mode().Perm())
		if err != nil {
			return err
		}
		_, err = io.CopyN(file, content, header.Size)
		return errors.Join(err, file.Close())
	default:
		return fmt.Errorf("%s is neither a file, a folder nor a symbolic link", header.Name)
	}
}
