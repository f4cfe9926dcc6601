// Command serve starts a PostgreSQL server, runs a command with its TEST_DATABASE_URL, and stops
// the server:
//
//	go run ./internal/testdb/serve go test ./...
//
// So all packages of a run share one server, and the migrations run once. The server has fsync
// off: the programs refuse it, so the tests that start programs have a server of their own.
//
// It is a command, since the go command starts the tests of each package as a process of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/payonce/payonce/internal/postgres/local"
)

func main() {
	err := run(context.Background(), os.Args[1:])
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(max(1, failed.ExitCode())) // the command has said why
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// maxConnections is enough for the pools of as many test processes as the go command runs at a time.
const maxConnections = "1000"

func run(ctx context.Context, command []string) (err error) {
	if len(command) == 0 {
		return errors.New("usage: serve COMMAND [ARGUMENT...]")
	}
	server, err := local.Start(ctx, local.Options{InMemory: true, Settings: map[string]string{"max_connections": maxConnections}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }() //nolint:contextcheck // it stops the server whatever ctx says
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Env = append(os.Environ(), "TEST_DATABASE_URL="+server.URL("postgres"))
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	return c.Run()
}
