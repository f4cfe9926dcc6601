package harness

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Program says what to start.
type Program struct {
	// Name distinguishes programs and names their log files.
	Name string
	Path string
	Args []string
	// Env is the whole environment, but for what a program inherits: PATH, HOME,
	// TMPDIR, and what the user has decided about plain text. Without HTTP_ADDR it gets a free port of the loopback
	// interface.
	Env map[string]string
	// Log is the folder of the log files, which are appended to: NAME.log has
	// stderr, NAME.stdout has stdout.
	Log string
	// Started, if set, is called at each start with the process id, before the
	// program has read its settings.
	Started func(pid int)
}

func (p Program) file(suffix string) string { return filepath.Join(p.Log, p.Name+suffix) }

// environ is a whole environment, as a process has it.
func environ(given map[string]string) []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "ALLOW_PLAINTEXT"} {
		if value, set := os.LookupEnv(name); set {
			env = append(env, name+"="+value)
		}
	}
	for name, value := range given {
		env = append(env, name+"="+value)
	}
	return env
}

// Run runs a command to its end, with the environment given and what a program
// inherits, and returns what it wrote to stdout. Where it
// exits with another code than 0 the output is returned too, and the error is
// an *exec.ExitError with the end of its stderr. Unlike a started program it
// is not ended by the death of this process, only by ctx.
func Run(ctx context.Context, env map[string]string, path string, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, path, args...)
	command.Env = environ(env)
	command.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		// Arguments behind the subcommand may hold keys.
		return stdout.Bytes(), fmt.Errorf("run %s %v: %w: %s", filepath.Base(path), args[:min(1, len(args))], err, tail(stderr.Bytes(), 5))
	}
	return stdout.Bytes(), nil
}

func tail(text []byte, lines int) []byte {
	all := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}

// Tail is the end of the program's log, for a report of what went wrong.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.program.file(".log"))
	if err != nil {
		return err.Error()
	}
	return string(tail(text, 12))
}
