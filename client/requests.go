package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Request is what an operation sends.
type Request struct {
	Operation string          `json:"operation"` // your name for it
	Key       string          `json:"key"`       // the idempotency key
	What      string          `json:"what"`      // "charge", "refund ch_…", "cancel ch_…"
	Body      json.RawMessage `json:"body"`
}

// Requests stores the request of each operation. It may be used concurrently, by several
// processes if the operations are.
//
// In your own database it is one statement, insert … on conflict (operation) do nothing, and
// one that reads.
type Requests interface {
	// Keep stores a request, unless one is stored for its operation, and returns the one that is
	// stored. When it returns without an error, a crash does not lose it.
	Keep(ctx context.Context, r Request) (Request, error)
}

// Folder stores each request as a file. Delete a file after its operation has ended for good.
type Folder struct{ root *os.Root }

// OpenFolder makes the folder, if it is not there. Other accounts cannot read it: requests name
// orders and payment methods.
func OpenFolder(path string) (*Folder, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("open the folder of requests: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the folder of requests: %w", err)
	}
	return &Folder{root}, nil
}

// Keep implements Requests.
func (f *Folder) Keep(_ context.Context, r Request) (Request, error) {
	digest := sha256.Sum256([]byte(r.Operation))
	name := hex.EncodeToString(digest[:]) + ".json"
	text, err := json.Marshal(r)
	if err != nil {
		return Request{}, err
	}
	unfinished := r.Key + ".tmp" // a crash leaves it, and nothing reads it
	if err := f.write(unfinished, text); err != nil {
		return Request{}, err
	}
	// Of rivals one links its file. The others read that one.
	err = f.root.Link(unfinished, name)
	_ = f.root.Remove(unfinished)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return Request{}, err
	}
	if err := f.sync("."); err != nil {
		return Request{}, err
	}
	return f.read(name)
}

func (f *Folder) read(name string) (r Request, err error) {
	text, err := f.root.ReadFile(name)
	if err != nil {
		return Request{}, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return Request{}, fmt.Errorf("read %s: %w", filepath.Join(f.root.Name(), name), err)
	}
	return r, nil
}

// write writes a file that survives a crash of the machine.
func (f *Folder) write(name string, text []byte) error {
	return errors.Join(f.root.WriteFile(name, text, 0o600), f.sync(name))
}

func (f *Folder) sync(name string) error {
	file, err := f.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
