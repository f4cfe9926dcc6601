package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// Querier reads. A *DB is one, and so are a pgx connection and transaction.
type Querier = groupcommit.Querier

// setMerchant names the merchant of a transaction. The setting ends with it, and so with the
// batch.
const setMerchant = `
-- postgres.setMerchant
select set_config('payonce.merchant', $1, true)`

// Tenant is the database as one merchant has it. Each of its reads and commits is a
// transaction that names the merchant, and the policies of the tables
// (migrations/service.sql) show the api's role the merchant's rows alone and refuse
// to write others (42501). Under another role it is the database itself.
//
// The merchant's name is the first statement of the same batch, and ends with it, so a
// connection goes back to the pool without a name.
func (db *DB) Tenant(merchant string) *DB {
	tenant := *db
	tenant.merchant = merchant
	return &tenant
}

// QueueTenant names a merchant for the statements that follow in a batch.
func QueueTenant(b *pgx.Batch, merchant string) { b.Queue(setMerchant, merchant) }

// named is a batch that names a merchant first; the batch itself for none.
func named(merchant string, b *pgx.Batch) *pgx.Batch {
	if merchant == "" {
		return b
	}
	n := &pgx.Batch{}
	QueueTenant(n, merchant)
	n.QueuedQueries = append(n.QueuedQueries, b.QueuedQueries...)
	return n
}

// Read sends a batch whose statements read, in one transaction and round trip, and passes
// their rows to the functions that were queued with them. An error of one of these ends it,
// as does a statement that the server refuses. What a statement writes is durable when there is no error.
func (db *DB) Read(ctx context.Context, b *pgx.Batch) error {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	err = conn.SendBatch(ctx, named(db.merchant, b)).Close()
	if err == nil {
		err = replicated(ctx, conn)
	}
	return err
}

// Query reads rows, until they end or are closed. What a statement is to write belongs into QueryRow, Read or Commit:
// Query does not see that an operator has ended the wait for a standby.
func (db *DB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if db.merchant == "" {
		return db.pool.Query(ctx, sql, args...)
	}
	b := &pgx.Batch{}
	QueueTenant(b, db.merchant)
	b.Queue(sql, args...)
	batch := db.pool.SendBatch(ctx, b)
	_, _ = batch.Exec() // Query has its error too
	found, err := batch.Query()
	if err != nil {
		_ = batch.Close()
	}
	return rows{found, batch}, err
}

// rows are the second result of a batch, whose connection is released with them.
type rows struct {
	pgx.Rows

	batch pgx.BatchResults
}

func (r rows) Close() {
	r.Rows.Close()
	_ = r.batch.Close()
}

// QueryRow reads one row. What the statement writes is durable when Scan returns nil.
func (db *DB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return row(func(dest ...any) error {
		b := &pgx.Batch{}
		b.Queue(sql, args...).QueryRow(func(first pgx.Row) error { return first.Scan(dest...) })
		return db.Read(ctx, b)
	})
}

// row is a row that is read by Scan.
type row func(dest ...any) error

func (r row) Scan(dest ...any) error { return r(dest...) }
