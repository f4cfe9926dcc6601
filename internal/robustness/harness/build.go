package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Binaries are the paths of the built programs.
type Binaries struct {
	API     string
	Worker  string
	Sandbox string
	Payonce string
}

func in(dir string) Binaries {
	return Binaries{
		API:     filepath.Join(dir, "api"),
		Worker:  filepath.Join(dir, "worker"),
		Sandbox: filepath.Join(dir, "sandbox"),
		Payonce: filepath.Join(dir, "payonce"),
	}
}

// Build builds the four programs into dir with one go command and returns their paths. The flags go
// to `go build` (-race, -overlay=FILE, -C TREE). What a debugger reads is left out, which halves the
// linker's work. Without flags, where all four lie next to the running program, as in an image, it builds
// nothing and returns those.
func Build(ctx context.Context, dir string, flags ...string) (Binaries, error) {
	if self, err := os.Executable(); err == nil && len(flags) == 0 {
		beside := in(filepath.Dir(self))
		if isFile(beside.API) && isFile(beside.Worker) && isFile(beside.Sandbox) && isFile(beside.Payonce) {
			return beside, nil
		}
	}
	const from = "github.com/payonce/payonce/cmd/"
	args := append([]string{"build"}, flags...) // -C has to be the first
	args = append(args, "-ldflags=-s -w", "-o", dir+string(filepath.Separator), from+"api", from+"worker", from+"sandbox", from+"payonce")
	if said, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return Binaries{}, fmt.Errorf("build programs inside the checkout, or put api, worker, sandbox and payonce in one folder: %w\n%s",
			errors.Join(ctx.Err(), err), bytes.TrimSpace(said))
	}
	return in(dir), nil
}

func isFile(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
