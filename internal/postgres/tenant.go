package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"
)

// Store is where one decision is read and committed: a whole database, or what
// one merchant has of it.
type Store interface {
	Querier
	// Commit is that of DB.
	Commit(ctx context.Context, b *pgx.Batch) error
}

var (
	_ Store = (*DB)(nil)
	_ Store = (*Tenant)(nil)
)

// Tenant is the database as one merchant has it. Each of its statements runs in
// a transaction that names the merchant, and the policies of the tables
// (migrations/service.sql) show that role of the api the merchant's rows alone and refuse
// to write others (42501). Under another role it is the database itself.
//
// Naming the merchant costs no round trip: it is the first statement of the same
// batch, and ends with it, so a connection goes back to the pool without a name.
type Tenant struct {
	db       *DB
	merchant string
}

// Tenant is the database as a merchant has it.
func (db *DB) Tenant(merchant string) *Tenant { return &Tenant{db: db, merchant: merchant} }

const merchantSetting = "payonce.merchant"

// Query reads rows of the merchant in one round trip, as QueryWith does.
func (t *Tenant) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.db.queryAfter(ctx, &pgx.QueuedQuery{SQL: setMerchant, Arguments: []any{t.merchant}}, sql, args...)
}

// QueryWith reads rows of the merchant under settings that end with it.
func (t *Tenant) QueryWith(ctx context.Context, s Settings, sql string, args ...any) (pgx.Rows, error) {
	named := Settings{}
	maps.Copy(named, s)
	named[merchantSetting] = t.merchant
	return t.db.QueryWith(ctx, named, sql, args...)
}

// As names a merchant for the reads that come after it in one call of Read.
func As(merchant string) Read { return Read{SQL: setMerchant, Args: []any{merchant}} }

// QueryRow reads one row of the merchant, as Query does.
func (t *Tenant) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := t.Query(ctx, sql, args...)
	return firstRow{rows: rows, err: err}
}

// Commit commits a batch of the merchant, as the Commit of DB does.
func (t *Tenant) Commit(ctx context.Context, b *pgx.Batch) error {
	return t.db.commit(ctx, t.merchant, b)
}

// Snapshot is that of DB, of the merchant.
func (t *Tenant) Snapshot(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.db.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, setMerchant, t.merchant); err != nil {
		return nil, errors.Join(fmt.Errorf("name the merchant of a snapshot: %w", err), tx.Rollback(context.WithoutCancel(ctx)))
	}
	return tx, nil
}

// Snapshot opens a transaction that reads, and sees at all times what was there
// at its first statement. It holds a connection until it is rolled back.
func (db *DB) Snapshot(ctx context.Context) (pgx.Tx, error) {
	tx, err := db.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("open a snapshot: %w", err)
	}
	return tx, nil
}

// firstRow is the first of some rows, as pgx.Row has it.
type firstRow struct {
	rows pgx.Rows
	err  error
}

func (r firstRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
