package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Binaries are the paths of the built programs.
type Binaries struct {
	API     string
	Worker  string
	Sandbox string
	Payonce string
}

// In are the programs in a folder.
func In(dir string) Binaries {
	return Binaries{
		API:     filepath.Join(dir, "api"),
		Worker:  filepath.Join(dir, "worker"),
		Sandbox: filepath.Join(dir, "sandbox"),
		Payonce: filepath.Join(dir, "payonce"),
	}
}

// Build builds the four programs into dir, which is an absolute path, and returns their paths. The flags go
// to `go run` (-race, -overlay=FILE, -C TREE), which keeps what it linked in Go's cache: a program that has not
// changed is copied. A program that was built so does not know its commit. The first one compiles what all need,
// then the others are built at once. Without flags, where all four lie next to the running program, as in an
// image, Build builds nothing and returns those.
func Build(ctx context.Context, dir string, flags ...string) (Binaries, error) {
	if self, err := os.Executable(); err == nil && len(flags) == 0 {
		beside := In(filepath.Dir(self))
		if isFile(beside.API) && isFile(beside.Worker) && isFile(beside.Sandbox) && isFile(beside.Payonce) {
			return beside, nil
		}
	}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = buildOne(ctx, dir, "payonce", flags...)
	}
	if err == nil {
		others := []string{"api", "worker", "sandbox"}
		err = atOnce(len(others), func(i int) error { return buildOne(ctx, dir, others[i], flags...) })
	}
	if err != nil {
		return Binaries{}, fmt.Errorf("build programs inside the checkout, or put api, worker, sandbox and payonce in one folder: %w", err)
	}
	return In(dir), nil
}

// buildOne builds one program into dir. In place of the program go runs cp, with the program's path before dir.
func buildOne(ctx context.Context, dir, program string, flags ...string) error {
	args := append([]string{"run"}, flags...) // -C has to be the first
	args = append(args, "-exec=cp", "github.com/payonce/payonce/cmd/"+program, dir)
	if said, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), errors.Join(ctx.Err(), err), bytes.TrimSpace(said))
	}
	return nil
}

func isFile(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
