// Package upkeep keeps the tables in order: it deletes the rows that have expired, binds the database to
// an account of the provider, recognizes tables that came through a dump, and raises the epoch of their
// order numbers.
//
// An event has the number of the transaction that wrote it, and the readers of the ledger go by these
// numbers. On another server they belong to other transactions, or to none. Messages have no such
// numbers: those of a dump are delivered, and the inbox drops what it has received.
//
// Table: provider_account. It also replaces the ledger's epoch and mark. It is a part of no other package,
// since it concerns the rows of several, and no library knows them.
package upkeep

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
)

// ErrRestored is returned by CheckSession for tables that came through a dump and were not repaired since.
var ErrRestored = errors.New("the tables were restored from a dump: run payonce outbox repair before a program starts")

// selectOriginal reads the mark and one entry of the ledger's index.
const selectOriginal = `
-- upkeep.selectOriginal
select is_original
  from restore_guard`

// IsOriginal reports whether the tables did not come through a dump since they were made or repaired, and
// name no transaction that the server has not had.
//
// It goes by a mark that a dump does not carry, so neither the server's count nor time
// changes the answer. Copied files carry the mark and the count.
// Test: TestRestoreGuard in migrations.
func IsOriginal(ctx context.Context, q postgres.Querier) (original bool, err error) {
	if err := q.QueryRow(ctx, selectOriginal).Scan(&original); err != nil {
		return false, fmt.Errorf("read whether the tables were restored: %w", err)
	}
	return original, nil
}

const undefinedTable = "42P01"

// CheckSession makes a CheckSession of postgres.Options. It returns ErrRestored for a session with tables
// that have to be repaired: what it wrote could have lower order numbers than what readers have passed.
// It passes a database that is not migrated, until it has seen tables: later they are missing in the
// middle of a restore.
func CheckSession() func(ctx context.Context, c *pgconn.PgConn) error {
	var seen atomic.Bool
	return func(ctx context.Context, c *pgconn.PgConn) error {
		answer := c.ExecParams(ctx, selectOriginal, nil, nil, nil, nil).Read()
		if refusal, ok := errors.AsType[*pgconn.PgError](answer.Err); ok && refusal.Code == undefinedTable && !seen.Load() {
			return nil
		}
		if answer.Err != nil {
			return fmt.Errorf("read whether the tables were restored: %w", answer.Err)
		}
		seen.Store(true)
		if string(answer.Rows[0][0]) != "t" {
			return ErrRestored
		}
		return nil
	}
}

//go:embed repair.sql
var nextEpoch string

const selectEpoch = `
-- upkeep.selectEpoch
select ledger_epoch()`

// Repair raises the epoch of the order numbers after a restore, and returns it: what came with the dump is
// then older than everything that is committed here. No event, checkpoint or cursor is changed. Repeated, or
// where nothing was restored, it changes nothing that matters: it waits for transactions that write
// events, and a program's next event is in the new epoch. A running pg_dump locks the mark, and Repair
// fails after the pool's lock time-out. db must be the owner's.
//
// Nothing may have been written since the restore: the programs refuse to start before the repair.
//
// If we die here: nothing was changed.
// Tests: TestRepairKilled, TestRestore_ofAnOlderDump_capturesNothingTwice in e2e.
func Repair(ctx context.Context, db *postgres.DB) (epoch int64, err error) {
	err = pgx.BeginFunc(ctx, db.Pool(), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, nextEpoch, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, selectEpoch).Scan(&epoch); err != nil {
			return err
		}
		original, err := IsOriginal(ctx, tx)
		if err == nil && !original {
			err = errors.New("the tables name a transaction that this server has not had, and are refused until it has")
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("raise the epoch: %w", err)
	}
	return epoch, nil
}
