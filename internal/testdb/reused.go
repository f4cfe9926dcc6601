package testdb

import (
	"context"
	_ "embed"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// prepare makes a database restorable, so that fresh.restore() empties it.
//
//go:embed restore.sql
var prepare string

// keptConns is how many connections a pool may keep from one test to the next.
const keptConns = 2

// idle are the databases that wait for their next test.
var (
	idle   []*postgres.DB
	idleMu sync.Mutex
)

// Reused returns a pool on a database with every migration and the rows that the
// migrations insert, as Open does. Unlike Open, it may return a database that an earlier
// test of the process used: to empty one costs a tenth of making one.
//
// A test may do to it whatever it may do to a fresh database. When the test ends, sessions
// that still work are ended, and a database whose schema has changed is dropped. A test
// must not close the pool.
func Reused(tb testing.TB) *postgres.DB {
	tb.Helper()
	s := start(tb)
	db := takeIdle()
	if db == nil {
		var err error
		if db, err = openReusable(tb.Context(), s); err != nil {
			tb.Fatal(err)
		}
	}
	atEnd(tb, func(ctx context.Context) error { return giveBack(ctx, s, db) })
	return db
}

func takeIdle() (db *postgres.DB) {
	idleMu.Lock()
	defer idleMu.Unlock()
	if last := len(idle) - 1; last >= 0 {
		db, idle = idle[last], idle[:last]
	}
	return db
}

func openReusable(ctx context.Context, s *server) (*postgres.DB, error) {
	template, err := s.migrated()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	name, err := s.create(ctx, template)
	if err != nil {
		return nil, err
	}
	db, err := postgres.Open(ctx, s.url(name), options("tests"))
	if err != nil {
		return nil, errors.Join(err, s.drop(ctx, name))
	}
	if _, err := db.Pool().Exec(ctx, prepare, pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, errors.Join(err, dropReused(ctx, s, db))
	}
	return db, nil
}

// giveBack empties a database for its next test, or drops it if that is not possible.
func giveBack(ctx context.Context, s *server, db *postgres.DB) error {
	if _, err := db.Pool().Exec(ctx, `select fresh.restore()`, pgx.QueryExecModeSimpleProtocol); err != nil {
		return dropReused(ctx, s, db)
	}
	if db.Pool().Stat().TotalConns() > keptConns {
		db.Pool().Reset()
	}
	idleMu.Lock()
	defer idleMu.Unlock()
	idle = append(idle, db)
	return nil
}

func dropReused(ctx context.Context, s *server, db *postgres.DB) error {
	db.Close()
	return s.drop(ctx, db.Pool().Config().ConnConfig.Database)
}

// dropIdle drops what is left when the tests have ended.
func dropIdle(s *server) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	for db := takeIdle(); db != nil; db = takeIdle() {
		errs = append(errs, dropReused(ctx, s, db))
	}
	return errors.Join(errs...)
}
