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

	// Of the guard lab: whether the server has ICU, and how its databases sort.
	icu      bool
	collated string
}

// openDatabases uses the server at a URL, or starts one where there is none. A
// server that was started forces every commit to disk, as the programs demand. The server of
// the lab is in memory if it may be, and sorts as ICU does if it can.
func openDatabases(ctx context.Context, at string, lab bool) (*databases, error) {
	s := &databases{server: at, suffix: newRunName()}
	if at == "" {
		var err error
		if s.own, err = local.Start(ctx, local.Options{Fsync: true, InMemory: lab}); err != nil {
			return nil, err
		}
		s.server = s.own.URL("postgres")
	}
	if !lab {
		return s, nil
	}
	err := s.on(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select exists (select from pg_collation where collprovider = 'i')`).Scan(&s.icu)
	})
	if s.icu {
		s.collated = " template template0 encoding 'UTF8' locale_provider icu icu_locale 'und'"
	}
	return s, err
}

// create makes a database and returns its URL.
func (s *databases) create(ctx context.Context, name string) (string, error) {
	name = "payonce_demo_" + name + "_" + s.suffix
	at, err := inDatabase(s.server, name)
	if err != nil {
		return "", err
	}
	if err := s.command(ctx, "create database "+pgx.Identifier{name}.Sanitize()+s.collated); err != nil {
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
	return s.on(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
		return nil
	})
}

func (s *databases) on(ctx context.Context, do func(*pgx.Conn) error) error {
	return onDatabase(ctx, s.server, do)
}

// onDatabase runs with a connection to a database.
func onDatabase(ctx context.Context, at string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		return fmt.Errorf("connect to the demo's server: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return do(conn)
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
