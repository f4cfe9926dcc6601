package main

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
)

// server is the PostgreSQL server of a run.
type server struct {
	*local.Server

	postmaster int // its process id
	version    string
}

// settings are those of a small production server, the same for all programs: no
// checkpoint falls into one measurement and not into another, and the WAL's files are
// written over.
var settings = map[string]string{
	"shared_buffers":     "512MB",
	"min_wal_size":       "2GB",
	"max_wal_size":       "8GB",
	"checkpoint_timeout": "30min",
}

const selectServer = `
select split_part(pg_read_file('postmaster.pid'), e'\n', 1)::int,
       current_setting('server_version')`

func startServer(ctx context.Context, statements bool) (*server, error) {
	with := maps.Clone(settings)
	if statements {
		with["shared_preload_libraries"], with["pg_stat_statements.track"] = "pg_stat_statements", "all"
	}
	started, err := local.Start(ctx, local.Options{Fsync: true, Settings: with})
	if err != nil {
		return nil, err
	}
	s := &server{Server: started}
	if err := read(ctx, s.URL("postgres"), selectServer, nil, &s.postmaster, &s.version); err != nil {
		return nil, errors.Join(err, started.Close()) //nolint:contextcheck // it closes whatever happens
	}
	return s, nil
}

// logFiles are the files of the WAL, 16 MB each, that min_wal_size keeps.
const logFiles = 128

const switchFiles = `
select pg_logical_emit_message(false, 'bench', 'an empty file would not be switched'),
       pg_switch_wal()
  from generate_series(1, $1::int)`

// fillLog gives the WAL so many files to write over, as on a server that has run for a
// while. A new server makes each file, fills it with zeros and flushes it, while all
// commits wait.
func (s *server) fillLog(ctx context.Context, files int) error {
	if err := execute(ctx, s.URL("postgres"), switchFiles, files); err != nil {
		return err
	}
	return s.checkpoint(ctx)
}

func (s *server) checkpoint(ctx context.Context) error {
	return execute(ctx, s.URL("postgres"), "checkpoint")
}

func (s *server) drop(ctx context.Context, database string) error {
	return execute(ctx, s.URL("postgres"), "drop database "+database+" with (force)")
}

// connected calls do with a connection of its own.
func connected(ctx context.Context, url string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(conn)
}

func execute(ctx context.Context, url, sql string, args ...any) error {
	return connected(ctx, url, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("execute %.60q: %w", sql, err)
		}
		return nil
	})
}

// read reads the one row of a query.
func read(ctx context.Context, url, sql string, args []any, row ...any) error {
	return connected(ctx, url, func(conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, sql, args...).Scan(row...); err != nil {
			return fmt.Errorf("read %.60q: %w", sql, err)
		}
		return nil
	})
}
