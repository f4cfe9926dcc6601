// Package scaffold is what the examples have around what they show: a pool on an empty
// schema, processes that are killed, and requests.
package scaffold

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
)

const limit = 2 * time.Minute // of an example

// Main calls run with a pool on a schema of this name in the database of DATABASE_URL, or of a
// server that it starts, and exits with 1 after an error. The schema is made, and emptied if it
// was there; then it has the tables. In a process of KillAfter Main makes nothing, and calls inRole
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
		if err := os.Setenv("DATABASE_URL", server.URL("postgres")); err != nil { // for the processes of KillAfter too
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

// Role is what KillAfter gave this process, and empty for the first process of an example.
func Role() string { return strings.Join(os.Args[1:], " ") }

// KillAfter starts this program once more, in a role, and ends it by SIGKILL when it has printed a line
// n times. Its schema is left as it is.
func KillAfter(ctx context.Context, role string, n int, line string) error {
	c := exec.CommandContext(ctx, os.Args[0], strings.Fields(role)...) //nolint:gosec // it is this program
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return err
	}
	for lines := bufio.NewReader(out); n > 0; {
		printed, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		if printed == line+"\n" {
			n--
		}
	}
	_ = c.Process.Kill()
	_ = c.Wait() // it was killed
	return nil
}

// Answer is the answer to a request, or the error in its place.
type Answer struct {
	Status            int
	ContentType, Body string
	Replayed          bool
	Err               error
}

// Post sends a body once. A header without a value is left out.
func Post(ctx context.Context, url, body string, header map[string]string) Answer {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return Answer{Err: err}
	}
	for name, value := range header {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	a, err := harness.Exchange(http.DefaultClient, r)
	return Answer{a.Status, a.Header.Get("Content-Type"), string(a.Body), a.Header.Get("Idempotent-Replayed") == "true", err}
}

// PostOrder sends an order to a shop once, under a key; empty means none.
func PostOrder(ctx context.Context, shop, key, order string) Answer {
	return Post(ctx, shop+"/orders", order, map[string]string{"Content-Type": "application/json", "Idempotency-Key": key})
}
