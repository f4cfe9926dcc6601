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
	"github.com/payonce/payonce/internal/postgres/local"
)

const limit = 2 * time.Minute // of an example

// Main calls run with a pool on a schema of this name in the database of DATABASE_URL, or of a
// server that it starts, and exits with 1 after an error. The schema is made, and emptied if it
// was there; then it has the tables. In a process of Start Main makes nothing, and calls inRole
// instead.
func Main(schema, tables string, run func(context.Context, *pgxpool.Pool) error, inRole ...func(context.Context, *pgxpool.Pool) error) {
	if Role() != "" {
		run = inRole[0]
	}
	if err := withPool(context.Background(), schema, tables, run); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func withPool(ctx context.Context, schema, tables string, run func(context.Context, *pgxpool.Pool) error) error {
	if os.Getenv("DATABASE_URL") == "" {
		server, err := local.Start(ctx, local.Options{Fsync: true})
		if err != nil {
			return err
		}
		defer func() { _ = server.Close() }()                                     //nolint:contextcheck // it stops the server whatever ctx says
		if err := os.Setenv("DATABASE_URL", server.URL("postgres")); err != nil { // for the processes of Start too
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
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
	cmd *exec.Cmd
	out *bufio.Reader
}

// Start starts this program once more, in a role. Its schema is left as it is.
func Start(ctx context.Context, role string) (*Process, error) {
	c := exec.CommandContext(ctx, os.Args[0], strings.Fields(role)...) //nolint:gosec // it is this program
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &Process{c, bufio.NewReader(out)}, c.Start()
}

// Rest waits for the end of the process, and returns what it has printed.
func (p *Process) Rest() (string, error) {
	out, err := io.ReadAll(p.out)
	return string(out), errors.Join(err, p.cmd.Wait())
}

// KillAfter ends the process by SIGKILL when it has printed a line n times.
func (p *Process) KillAfter(n int, line string) error {
	for n > 0 {
		printed, err := p.out.ReadString('\n')
		if err != nil {
			return err
		}
		if printed == line+"\n" {
			n--
		}
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
	return nil
}
