package testdb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/migrations"
)

// shared returns the server that the tests of this process share.
var shared = sync.OnceValues(connect)

// server is where the databases of the tests are.
type server struct {
	admin    *pgxpool.Pool // on a database that is no template
	url      func(database string) string
	strategy string                 // of create database
	migrated func() (string, error) // the name of the template with every migration
}

// connect finds the server or starts it. It is closed after the last test; in a process
// that does not come to that, package local stops it.
func connect() (*server, error) {
	s := &server{}
	s.migrated = sync.OnceValues(s.migrate)
	address := os.Getenv("TEST_DATABASE_URL")
	if address == "" {
		started, err := local.Start(context.Background(), local.Options{InMemory: true})
		if err != nil {
			return nil, err
		}
		testrun.AtEnd(started.Close)
		// Without fsync, to copy files costs half of what it costs to log them.
		address, s.url, s.strategy = started.URL("postgres"), started.URL, " strategy file_copy"
	} else {
		parsed, err := url.Parse(address)
		if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
			return nil, errors.New("TEST_DATABASE_URL is no address of the form postgres://user@host/database")
		}
		s.url = func(database string) string {
			other := *parsed
			other.Path, other.RawPath = "/"+database, ""
			return other.String()
		}
	}
	var err error
	s.admin, err = pgxpool.New(context.Background(), address)
	if err != nil {
		return nil, fmt.Errorf("connect to the server for tests: %w", err)
	}
	testrun.AtEnd(func() error {
		err := dropIdle(s)
		s.admin.Close()
		return err
	})
	return s, nil
}

// migrate makes the template with every migration, unless the server has it: its name says
// of which migrations it was made. A template gets its name when it is complete, and
// nothing connects to it after that.
func (s *server) migrate() (string, error) {
	sum := sha256.New()
	for _, m := range migrations.All() {
		_, _ = fmt.Fprintf(sum, "%d %d %s", m.Version, len(m.SQL), m.SQL) // a hash does not fail
	}
	name := "payonce_template_" + hex.EncodeToString(sum.Sum(nil)[:8])
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := s.admin.Acquire(ctx)
	if err != nil {
		return "", fmt.Errorf("connect to the server for tests: %w", err)
	}
	defer conn.Release()
	return name, s.makeTemplate(ctx, conn.Conn(), name)
}

// templateLock is the advisory lock under which templates are made, in the database that
// TEST_DATABASE_URL names.
const templateLock = 7_296_690_381

const templateExists = `
select exists (
    select 1
      from pg_database
     where datname = $1)`

// makeTemplate makes a template under a lock: processes that start at the same time wait
// for the first.
func (s *server) makeTemplate(ctx context.Context, conn *pgx.Conn, name string) (err error) {
	if _, err := conn.Exec(ctx, `select pg_advisory_lock($1)`, templateLock); err != nil {
		return fmt.Errorf("lock the templates: %w", err)
	}
	defer func() {
		_, unlock := conn.Exec(context.WithoutCancel(ctx), `select pg_advisory_unlock($1)`, templateLock)
		err = errors.Join(err, unlock)
	}()
	var exists bool
	if err := conn.QueryRow(ctx, templateExists, name).Scan(&exists); err != nil || exists {
		return err
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

// create clones a template under a new name.
func (s *server) create(ctx context.Context, template string) (name string, err error) {
	name = "payonce_test_" + strings.ToLower(rand.Text())
	return name, s.clone(ctx, name, template)
}

// clone creates a database. If sessions are connected to the template, the server waits a
// few seconds for their end.
func (s *server) clone(ctx context.Context, name, template string) error {
	if _, err := s.admin.Exec(ctx, "create database "+quote(name)+" template "+quote(template)+s.strategy); err != nil {
		return fmt.Errorf("create the database %s: %w", name, err)
	}
	return nil
}

// drop removes a database, also one that sessions are connected to.
func (s *server) drop(ctx context.Context, name string) error {
	if _, err := s.admin.Exec(ctx, "drop database if exists "+quote(name)+" with (force)"); err != nil {
		return fmt.Errorf("drop the database %s: %w", name, err)
	}
	return nil
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
