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

// server is the PostgreSQL server under a stage.
type server interface {
	// create makes a database and returns its URL.
	create(ctx context.Context, name string) (string, error)
	// restart restarts the server without a shutdown, or returns errNotRun.
	restart(ctx context.Context) error
	// close removes what create made.
	close(ctx context.Context) error
}

// openServer uses the server at a URL, or starts one where there is none. A
// server that was started forces every commit to disk, as the programs demand.
func openServer(ctx context.Context, at string) (server, error) {
	if at != "" {
		return &lentServer{url: at, suffix: newRunName()}, nil
	}
	s, err := local.Start(ctx, local.Options{Fsync: true})
	if err != nil {
		return nil, err
	}
	return startedServer{s}, nil
}

type startedServer struct{ *local.Server }

func (s startedServer) create(ctx context.Context, name string) (string, error) {
	return s.URL(name), s.CreateDatabase(ctx, name)
}

func (s startedServer) restart(ctx context.Context) error { return s.Restart(ctx) }

func (s startedServer) close(context.Context) error { return s.Close() } //nolint:contextcheck // Close bounds itself

// lentServer is the user's own: the demo adds databases with names of their own
// and drops them in the end. The roles that a migration makes belong to the
// server and stay.
type lentServer struct {
	url    string
	suffix string
	made   []string
}

func (s *lentServer) create(ctx context.Context, name string) (string, error) {
	database := "payonce_demo_" + name + "_" + s.suffix
	at, err := inDatabase(s.url, database)
	if err != nil {
		return "", err
	}
	if err := s.command(ctx, "create database "+pgx.Identifier{database}.Sanitize()); err != nil {
		return "", err
	}
	s.made = append(s.made, database)
	return at, nil
}

func (s *lentServer) restart(context.Context) error { return errNotRun }

func (s *lentServer) close(ctx context.Context) error {
	var errs []error
	for _, database := range s.made {
		errs = append(errs, s.command(ctx, "drop database if exists "+pgx.Identifier{database}.Sanitize()+" with (force)"))
	}
	return errors.Join(errs...)
}

// command runs a statement that takes neither parameters nor a transaction.
func (s *lentServer) command(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("connect to the server of --database: %w", err)
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
