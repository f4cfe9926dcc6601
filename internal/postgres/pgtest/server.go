package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/migrations"
)

// templateLock is the advisory lock under which templates are made, in the
// database that TEST_DATABASE_URL names.
const templateLock = 7_296_690_381

var (
	shared   = sync.OnceValues(connect)
	template = sync.OnceValues(migrate)
	// idle are connections to a server of our own, kept for the next test: to make one
	// costs the server as much as to drop a database.
	idle = make(chan *pgx.Conn, idleConns)
)

// server is where the databases of this process's tests are.
type server struct {
	admin    string // connection string of a database that is no template
	url      func(database string) string
	strategy string         // of create database; the server's default where empty
	idle     chan *pgx.Conn // to the admin database; nil where none is kept
}

// idleConns is how many connections are kept.
const idleConns = 4

// connect finds the server or starts it. What it starts is closed after the last
// test; where the process does not come to that, package local stops it.
func connect() (server, error) {
	address := os.Getenv("TEST_DATABASE_URL")
	if address == "" {
		started, err := local.Start(context.Background(), local.Options{InMemory: true})
		if err != nil {
			return server{}, err
		}
		testrun.AtEnd(func() error {
			closeIdle()
			return started.Close()
		})
		// Where nothing is forced to disk, copying files costs half of what logging them does.
		return server{
			admin: started.URL("postgres"), url: started.URL,
			strategy: "file_copy", idle: idle,
		}, nil
	}
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		return server{}, errors.New("TEST_DATABASE_URL is no address of the form postgres://user@host/database")
	}
	return server{admin: address, url: func(database string) string {
		other := *parsed
		other.Path, other.RawPath = "/"+database, ""
		return other.String()
	}}, nil
}

// migrate makes the template that URL clones, unless the server has it: its name
// tells the migrations it was made of. A template gets its name when it is
// complete, and nobody connects to it after that.
func migrate() (string, error) {
	s, err := shared()
	if err != nil {
		return "", err
	}
	name := templateName(migrations.All())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return name, s.as(ctx, func(conn *pgx.Conn) error { return s.template(ctx, conn, name) })
}

func templateName(all []migrations.Migration) string {
	sum := sha256.New()
	for _, m := range all {
		_, _ = fmt.Fprintf(sum, "%d %d %s", m.Version, len(m.SQL), m.SQL) // a hash does not fail
	}
	return "payonce_template_" + hex.EncodeToString(sum.Sum(nil)[:8])
}

const lockTemplates = `select pg_advisory_lock($1)`

const templateExists = `
select exists (
    select 1
      from pg_database
     where datname = $1)`

// template makes the template under a lock: processes that come at the same time
// wait for the first.
func (s server) template(ctx context.Context, conn *pgx.Conn, name string) error {
	if _, err := conn.Exec(ctx, lockTemplates, templateLock); err != nil {
		return fmt.Errorf("lock the templates: %w", err)
	}
	var exists bool
	if err := conn.QueryRow(ctx, templateExists, name).Scan(&exists); err != nil {
		return fmt.Errorf("look for the template %s: %w", name, err)
	}
	if exists {
		return nil
	}
	unfinished := name + "_unfinished" // a killed process may have left one
	if err := s.drop(ctx, unfinished); err != nil {
		return err
	}
	if err := s.clone(ctx, unfinished, "template1"); err != nil {
		return err
	}
	if err := migrations.Up(ctx, s.url(unfinished)); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "alter database "+quote(unfinished)+" rename to "+quote(name)); err != nil {
		return fmt.Errorf("name the template %s: %w", name, err)
	}
	return nil
}

// clone creates a database. Nobody may be connected to the template meanwhile;
// the server waits a few seconds for those who are.
func (s server) clone(ctx context.Context, name, template string) error {
	create := "create database " + quote(name) + " template " + quote(template)
	if s.strategy != "" {
		create += " strategy " + s.strategy
	}
	if err := s.exec(ctx, create); err != nil {
		return fmt.Errorf("create the database %s: %w", name, err)
	}
	return nil
}

// drop removes a database, whoever is connected to it.
func (s server) drop(ctx context.Context, name string) error {
	if err := s.exec(ctx, "drop database if exists "+quote(name)+" with (force)"); err != nil {
		return fmt.Errorf("drop the database %s: %w", name, err)
	}
	return nil
}

// exec runs a statement that leaves nothing behind in its session.
func (s server) exec(ctx context.Context, statement string) error {
	var conn *pgx.Conn
	select {
	case conn = <-s.idle:
	default:
		var err error
		if conn, err = s.connect(ctx); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, statement)
	if conn.IsClosed() {
		return err
	}
	select {
	case s.idle <- conn:
	default:
		_ = conn.Close(context.WithoutCancel(ctx))
	}
	return err
}

// closeIdle closes the connections that are kept.
func closeIdle() {
	for {
		select {
		case conn := <-idle:
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			_ = conn.Close(ctx)
			cancel()
		default:
			return
		}
	}
}

// as runs statements on a connection of their own, which ends with them.
func (s server) as(ctx context.Context, run func(*pgx.Conn) error) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return run(conn)
}

func (s server) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, s.admin)
	if err != nil {
		return nil, fmt.Errorf("connect to the server for tests: %w", err)
	}
	return conn, nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
