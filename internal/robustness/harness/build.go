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

const module = "github.com/payonce/payonce"

// errNoPrograms says that there is neither a checkout to build from nor a set
// of built programs to use.
var errNoPrograms = errors.New("no programs: run inside the checkout, or put api, worker, sandbox and payonce in one folder")

// Binaries are the paths of the built programs.
type Binaries struct {
	API     string
	Worker  string
	Sandbox string
	Payonce string
}

// Build builds the four programs into dir with one go command and returns
// their paths. The flags go to `go build` (-race, -overlay=FILE). Outside a
// checkout it builds nothing and returns the programs that lie next to the
// running one, or an error that says so.
func Build(ctx context.Context, dir string, flags ...string) (Binaries, error) {
	root, found, err := checkout()
	if err != nil {
		return Binaries{}, err
	}
	if !found {
		return installed()
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return Binaries{}, fmt.Errorf("build programs: %w", err)
	}
	args := append([]string{"build", "-o", dir + string(filepath.Separator)}, flags...)
	args = append(args, "./cmd/api", "./cmd/worker", "./cmd/sandbox", "./cmd/payonce")
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = root
	if said, err := command.CombinedOutput(); err != nil {
		return Binaries{}, fmt.Errorf("build programs: %w\n%s", errors.Join(ctx.Err(), err), bytes.TrimSpace(said))
	}
	return in(dir), nil
}

// checkout walks up from the working directory to the module's root.
func checkout() (root string, found bool, err error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false, fmt.Errorf("find checkout: %w", err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.Contains("\n"+string(text), "\nmodule "+module+"\n") {
			return dir, true, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", false, nil
		}
		dir = up
	}
}

// installed are the programs next to the running one.
func installed() (Binaries, error) {
	self, err := os.Executable()
	if err != nil {
		return Binaries{}, fmt.Errorf("find programs: %w", err)
	}
	binaries := in(filepath.Dir(self))
	for _, path := range []string{binaries.API, binaries.Worker, binaries.Sandbox, binaries.Payonce} {
		if _, err := os.Stat(path); err != nil {
			return Binaries{}, fmt.Errorf("%w (%w)", errNoPrograms, err)
		}
	}
	return binaries, nil
}

func in(dir string) Binaries {
	return Binaries{
		API:     filepath.Join(dir, "api"),
		Worker:  filepath.Join(dir, "worker"),
		Sandbox: filepath.Join(dir, "sandbox"),
		Payonce: filepath.Join(dir, "payonce"),
	}
}
