package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// database is the service's database, on a server of the demo's own or on one that was lent. There
// it is dropped in the end; the roles that a migration makes belong to the server and stay.
type database struct {
	url    string
	server string        // its URL
	own    *local.Server // nil on a server that was lent
	name   string        // quoted
}

// openDatabase makes a database on the server at a URL, or starts a server where there is none. A
// server that was started forces every commit to disk, as the programs demand; that of the lab is
// in memory if it may be.
func openDatabase(ctx context.Context, at string, lab bool) (d *database, err error) {
	name := "payonce_demo_payonce_" + newRunName()
	d = &database{server: at, name: pgx.Identifier{name}.Sanitize()}
	if at == "" {
		if d.own, err = local.Start(ctx, local.Options{Fsync: true, InMemory: lab}); err != nil {
			return nil, err
		}
		d.server = d.own.URL("postgres")
	}
	if d.url, err = inDatabase(d.server, name); err == nil {
		err = execute(ctx, d.server, "create database "+d.name)
	}
	return d, err
}

// restart restarts the server without a shutdown, or returns errNotRun.
func (d *database) restart(ctx context.Context) error {
	if d.own == nil {
		return errNotRun
	}
	return d.own.Restart(ctx)
}

// close removes what was made.
func (d *database) close(ctx context.Context) error {
	if d.own != nil {
		return d.own.Close() //nolint:contextcheck // Close bounds itself
	}
	return execute(ctx, d.server, "drop database if exists "+d.name+" with (force)")
}

// execute runs statements without parameters, by a connection of its own.
func execute(ctx context.Context, at, statements string) error {
	return connected(ctx, at, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statements)
		return err
	})
}

// connected runs with a connection to a database.
func connected(ctx context.Context, at string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		return fmt.Errorf("connect to the demo's server: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return do(conn)
}

// await waits until a query returns true.
func await(ctx context.Context, conn *pgx.Conn, sql string, args ...any) error {
	for {
		var yes bool
		if err := conn.QueryRow(ctx, sql, args...).Scan(&yes); err != nil || yes {
			return err
		}
		if err := harness.Wait(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("wait for %s %v: %w", sql, args, err)
		}
	}
}

// inDatabase is the same server's URL, or its list of keywords, with another
// database.
func inDatabase(server, name string) (string, error) {
	if !strings.HasPrefix(server, "postgres://") && !strings.HasPrefix(server, "postgresql://") {
		// Of a keyword that is given twice the last one counts.
		return server + " dbname=" + name, nil
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("read the URL of --database: %w", errors.Unwrap(err)) // not its text: it may hold a password
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String(), nil
}
