// Package scaffold is what the examples have around what they show: a pool on an empty
// schema, and processes that can be killed.
package scaffold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const limit = 2 * time.Minute // of an example

// Main calls run with a pool on a schema of this name in the database of DATABASE_URL, and
// exits with 1 after an error. The schema is made, and emptied if it was there; then it has the
// tables. In a process of Start Main makes nothing, and calls inRole instead.
func Main(schema, tables string, run func(context.Context, *pgxpool.Pool) error, inRole ...func(context.Context, *pgxpool.Pool) error) {
	if Role() != "" {
		run = inRole[0]
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	err := withPool(ctx, schema, tables, run)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func withPool(ctx context.Context, schema, tables string, run func(context.Context, *pgxpool.Pool) error) error {
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		return errors.New("set DATABASE_URL, or start this program by: go run ./postgres go run ./EXAMPLE")
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["search_path"] = schema
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	if Role() == "" {
		if _, err := pool.Exec(ctx, fmt.Sprintf("drop schema if exists %[1]s cascade; create schema %[1]s;", schema)+tables); err != nil {
			return err
		}
	}
	return run(ctx, pool)
}

// Role is what Start gave this process, and empty for the first process of an example.
func Role() string { return strings.Join(os.Args[1:], " ") }

// Process is a second process of an example.
type Process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

// Start starts this program once more, in a role. Its schema is left as it is. Its standard
// input ends when this process does.
func Start(ctx context.Context, role string) (*Process, error) {
	c := exec.CommandContext(ctx, os.Args[0], strings.Fields(role)...) //nolint:gosec // it is this program
	c.Stderr = os.Stderr
	stdin, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &Process{c, stdin, bufio.NewReader(out)}, c.Start()
}

// Line returns the next line that the process prints.
func (p *Process) Line() (string, error) {
	line, err := p.out.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// Rest waits for the end of the process, and returns what it has printed.
func (p *Process) Rest() (string, error) {
	out, err := io.ReadAll(p.out)
	return string(out), errors.Join(err, p.cmd.Wait())
}

// Kill ends the process by SIGKILL.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// Stop ends the standard input of the process, and waits for its end.
func (p *Process) Stop() error { return errors.Join(p.stdin.Close(), p.cmd.Wait()) }
