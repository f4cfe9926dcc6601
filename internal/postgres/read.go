package postgres

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

// Read sends a batch whose statements read, in one transaction and round trip, and passes
// their rows to the functions that were queued with them. An error of one of these ends it,
// as does a statement that the server refuses. What a statement writes is durable when there is no error.
func (db *DB) Read(ctx context.Context, b *pgx.Batch) error {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	sent := &pgx.Batch{}
	if db.merchant != "" {
		QueueTenant(sent, db.merchant)
	}
	sent.QueuedQueries = append(sent.QueuedQueries, b.QueuedQueries...)
	if err = conn.SendBatch(ctx, sent).Close(); err == nil {
		err = replicated(ctx, conn)
	}
	return err
}

// Query reads rows. Their connection is released after the last row, or when they are closed. What the statement writes is durable when the rows have ended without an error.
func (db *DB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return &rows{err: err}, err
	}
	r := &rows{conn: conn}
	if db.merchant == "" {
		r.Rows, err = conn.Query(ctx, sql, args...)
	} else {
		b := &pgx.Batch{}
		QueueTenant(b, db.merchant)
		b.Queue(sql, args...)
		r.batch = conn.SendBatch(ctx, b)
		if _, err = r.batch.Exec(); err == nil {
			r.Rows, err = r.batch.Query()
		}
	}
	if err != nil {
		r.Close() //nolint:contextcheck // pgx.Rows close without a context
	}
	return r, r.err
}

// QueryRow reads one row.
func (db *DB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, _ := db.Query(ctx, sql, args...) // they have the error too
	return row{rows}
}

// rows release their connection after the last row, or when they are closed.
type rows struct {
	pgx.Rows // nil where there are none

	batch pgx.BatchResults // nil where the statement was sent alone
	conn  *pgxpool.Conn    // nil after its release
	err   error            // of all, after the release
}

func (r *rows) Close() {
	if r.conn == nil {
		return
	}
	if r.Rows != nil {
		r.Rows.Close()
		r.err = r.Rows.Err()
	}
	if r.batch != nil {
		r.err = cmp.Or(r.err, r.batch.Close()) // which commits
	}
	if r.err == nil {
		r.err = replicated(context.Background(), r.conn)
	}
	r.conn.Release()
	r.conn = nil
}

func (r *rows) Err() error {
	if r.conn == nil {
		return r.err
	}
	return r.Rows.Err()
}

func (r *rows) Next() bool {
	if r.conn == nil {
		return false
	}
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// row is the first of some rows.
type row struct{ pgx.Rows }

func (r row) Scan(dest ...any) error {
	defer r.Close()
	if !r.Next() {
		return cmp.Or(r.Err(), pgx.ErrNoRows)
	}
	err := r.Rows.Scan(dest...)
	r.Close()
	return cmp.Or(err, r.Err())
}
