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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres"
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
	migrated func() (string, error) // the name of the template with every migration

	mu   sync.Mutex
	idle []*postgres.DB // that wait for their next test
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
		address = started.URL("postgres")
	}
	parsed, err := url.Parse(address)
	if err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		return nil, errors.New("TEST_DATABASE_URL is no address of the form postgres://user@host/database")
	}
	s.url = func(database string) string {
		other := *parsed
		other.Path, other.RawPath = "/"+database, ""
		return other.String()
	}
	s.admin, err = pgxpool.New(context.Background(), address)
	if err != nil {
		return nil, fmt.Errorf("connect to the server for tests: %w", err)
	}
	testrun.AtEnd(func() error {
		var errs []error
		for db := s.takeIdle(); db != nil; db = s.takeIdle() {
			errs = append(errs, s.discard(context.Background(), db))
		}
		s.admin.Close()
		return errors.Join(errs...)
	})
	return s, nil
}

// migrate makes the template with every migration, unless the server has it: its name says
// of which migrations it was made. A template gets its name when it is complete, and
// nothing connects to it after that.
func (s *server) migrate() (name string, err error) {
	sum := sha256.New()
	for _, m := range migrations.All() {
		_, _ = fmt.Fprintf(sum, "%d %d %s", m.Version, len(m.SQL), m.SQL) // a hash does not fail
	}
	name = "payonce_template_" + hex.EncodeToString(sum.Sum(nil)[:8])
	ctx := context.Background()
	var exists bool
	if err := s.admin.QueryRow(ctx, `select exists (select 1 from pg_database where datname = $1)`, name).Scan(&exists); err != nil || exists {
		return name, err
	}
	fresh, err := s.create(ctx, "template1")
	if err != nil {
		return "", err
	}
	if err := migrations.Up(ctx, s.url(fresh)); err != nil {
		return "", err
	}
	_, err = s.admin.Exec(ctx, "alter database "+fresh+" rename to "+name)
	if code := Code(err); code == duplicateDatabase || code == uniqueViolation {
		return name, s.drop(ctx, fresh) // another process made it meanwhile
	}
	return name, err
}

// The server refuses a name that is taken, or that another transaction takes at the same
// moment.
const (
	duplicateDatabase = "42P04"
	uniqueViolation   = "23505"
)

// create clones a template under a new name. If sessions are connected to the template, the server
// waits a few seconds for their end. Without fsync, to copy files costs half of what it costs to log them.
func (s *server) create(ctx context.Context, template string) (name string, err error) {
	name = "payonce_test_" + strings.ToLower(rand.Text())
	if _, err := s.admin.Exec(ctx, "create database "+name+" template "+template+" strategy file_copy"); err != nil {
		return "", fmt.Errorf("create the database %s: %w", name, err)
	}
	return name, nil
}

// drop removes a database, also one that sessions are connected to.
func (s *server) drop(ctx context.Context, name string) error {
	if _, err := s.admin.Exec(ctx, "drop database if exists "+name+" with (force)"); err != nil {
		return fmt.Errorf("drop the database %s: %w", name, err)
	}
	return nil
}

// open returns a pool on a new database with every migration. The caller discards it.
func (s *server) open(ctx context.Context, application string) (*postgres.DB, error) {
	template, err := s.migrated()
	if err != nil {
		return nil, err
	}
	name, err := s.create(ctx, template)
	if err != nil {
		return nil, err
	}
	return postgres.Open(ctx, s.url(name), options(application))
}

// discard closes a pool and drops its database.
func (s *server) discard(ctx context.Context, db *postgres.DB) error {
	db.Close()
	return s.drop(ctx, db.Pool().Config().ConnConfig.Database)
}

func (s *server) takeIdle() (db *postgres.DB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.idle) - 1; last >= 0 {
		db, s.idle = s.idle[last], s.idle[:last]
	}
	return db
}

// giveBack empties a database for its next test, or drops it if that is not possible.
func (s *server) giveBack(ctx context.Context, db *postgres.DB) error {
	if _, err := db.Pool().Exec(ctx, `select fresh.restore()`); err != nil {
		return s.discard(ctx, db)
	}
	if db.Pool().Stat().TotalConns() > keptConns {
		db.Pool().Reset()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, db)
	return nil
}
