// Command postgres starts a PostgreSQL server and runs a command with its DATABASE_URL:
//
//	go run ./postgres go run ./once
//
// The server and its data are gone when the command has ended. The examples themselves
// take any DATABASE_URL.
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
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command []string) (err error) {
	if len(command) == 0 {
		return errors.New("usage: postgres COMMAND [ARGUMENT...]")
	}
	server, err := local.Start(ctx, local.Options{Fsync: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }() //nolint:contextcheck // it stops the server whatever ctx says
	if err := server.CreateDatabase(ctx, "examples"); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Env = append(os.Environ(), "DATABASE_URL="+server.URL("examples"))
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	return c.Run()
}
