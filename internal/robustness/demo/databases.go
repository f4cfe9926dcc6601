package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
)

// databases are those of a stage: on a server of the demo's own, or on one that was
// lent. There they are dropped in the end; the roles that a migration makes belong to
// the server and stay.
type databases struct {
	own    *local.Server // nil on a server that was lent
	server string        // its URL
	suffix string
	made   []string
}

// openDatabases uses the server at a URL, or starts one where there is none. A
// server that was started forces every commit to disk, as the programs demand.
func openDatabases(ctx context.Context, at string) (*databases, error) {
	s := &databases{server: at, suffix: newRunName()}
	if at == "" {
		var err error
		if s.own, err = local.Start(ctx, local.Options{Fsync: true}); err != nil {
			return nil, err
		}
		s.server = s.own.URL("postgres")
	}
	return s, nil
}

// create makes a database and returns its URL.
func (s *databases) create(ctx context.Context, name string) (string, error) {
	name = "payonce_demo_" + name + "_" + s.suffix
	at, err := inDatabase(s.server, name)
	if err != nil {
		return "", err
	}
	if err := s.command(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", err
	}
	s.made = append(s.made, name)
	return at, nil
}

// restart restarts the server without a shutdown, or returns errNotRun.
func (s *databases) restart(ctx context.Context) error {
	if s.own == nil {
		return errNotRun
	}
	return s.own.Restart(ctx)
}

// close removes what was made.
func (s *databases) close(ctx context.Context) (err error) {
	if s.own != nil {
		return s.own.Close() //nolint:contextcheck // Close bounds itself
	}
	for _, name := range s.made {
		err = errors.Join(err, s.command(ctx, "drop database if exists "+pgx.Identifier{name}.Sanitize()+" with (force)"))
	}
	return err
}

// command runs a statement that takes neither parameters nor a transaction.
func (s *databases) command(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.server)
	if err != nil {
		return fmt.Errorf("connect to the demo's server: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
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
