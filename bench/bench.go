package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// bench is what all measurements of a run share.
type bench struct {
	server        *local.Server
	admin         *pgx.Conn // of the server's own database
	postmaster    int       // the server's process id
	version       string
	versionNumber int

	programs       map[string]harness.Binaries // by who made them
	folder         string                      // for programs and their logs; removed at the end
	warm, measured time.Duration               // of each measurement
	replayed       int                         // charges whose responses are asked for again
	say            io.Writer
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

// open builds the programs and starts the server.
func open(ctx context.Context, say io.Writer, c runCmd, warm time.Duration) (*bench, error) {
	folder, err := os.MkdirTemp("", "payonce-bench-*")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	b := &bench{programs: map[string]harness.Binaries{}, folder: folder, say: say, warm: warm, measured: c.For, replayed: 2_000}
	if err := b.start(ctx, c.Base); err != nil {
		return nil, errors.Join(err, b.close()) //nolint:contextcheck // it closes whatever happens
	}
	return b, nil
}

const selectServer = `
select split_part(pg_read_file('postmaster.pid'), e'\n', 1)::int,
       current_setting('server_version'),
       current_setting('server_version_num')::int`

func (b *bench) start(ctx context.Context, base string) (err error) {
	fmt.Fprintln(b.say, "building the programs")
	for by, tree := range map[string]string{byPayonce: "..", byBase: base} {
		if tree == "" {
			continue
		}
		if b.programs[by], err = harness.Build(ctx, filepath.Join(b.folder, by), "-C", tree); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	b.programs[byRiver] = harness.Binaries{API: self, Payonce: b.programs[byPayonce].Payonce} // which makes its tables and its merchant
	fmt.Fprintln(b.say, "starting PostgreSQL, fsync on")
	if b.server, err = local.Start(ctx, local.Options{Fsync: true, Settings: settings}); err != nil {
		return err
	}
	if b.admin, err = pgx.Connect(ctx, b.server.URL("postgres")); err != nil {
		return err
	}
	if err := b.admin.QueryRow(ctx, selectServer).Scan(&b.postmaster, &b.version, &b.versionNumber); err != nil || b.warm == 0 {
		return err
	}
	_, err = b.admin.Exec(ctx, switchFiles, logFiles)
	return errors.Join(err, b.checkpoint(ctx))
}

// A new server makes each file of the WAL, fills it with zeros and flushes it, while all commits wait. So
// it gets as many files, of 16 MB each, as min_wal_size keeps, to write over them as a server does that has
// run for a while.
const (
	logFiles    = 128
	switchFiles = `
select pg_logical_emit_message(false, 'bench', 'an empty file would not be switched'),
       pg_switch_wal()
  from generate_series(1, $1::int)`
)

func (b *bench) checkpoint(ctx context.Context) error {
	_, err := b.admin.Exec(ctx, "checkpoint")
	return err
}

const databaseName = "bench"

// cleanUp removes the database of a measurement. So during the next one no pages of
// this one wait to be written, and autovacuum has nothing else to do.
func (b *bench) cleanUp(ctx context.Context) error {
	_, err := b.admin.Exec(ctx, "drop database if exists "+databaseName+" with (force)")
	return errors.Join(err, b.checkpoint(ctx))
}

func (b *bench) close() (err error) {
	if b.server != nil { // which ends the connection
		err = b.server.Close()
	}
	return errors.Join(err, os.RemoveAll(b.folder))
}
