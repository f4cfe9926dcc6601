package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrNoConnection is returned by reads, wrapped, when there was no connection to
// be had, or the one they had was lost before the answer: the server is out of
// reach, or all of the pool were in use until the deadline. It is not returned for
// a context that was canceled. Of a commit see ErrNotCommitted and ErrUnknown.
var ErrNoConnection = errors.New("no connection to the database")

// Querier reads. A *DB is one, and so are a pgx connection and transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// QuerierWith reads under settings that end with it. A *DB is one, and a *Tenant.
type QuerierWith interface {
	QueryWith(ctx context.Context, s Settings, sql string, args ...any) (pgx.Rows, error)
}

// Query reads rows outside any transaction. Without a connection the error, here or
// of the rows, is ErrNoConnection.
func (db *DB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := db.acquire(ctx)
	if err != nil {
		return noRows{err}, err
	}
	found, err := conn.Query(ctx, sql, args...)
	if err != nil {
		err = named(conn, err)
		conn.Release()
		return noRows{err}, err
	}
	return &rows{Rows: found, conn: conn}, nil
}

// QueryRow reads one row outside any transaction. Without a connection the error
// of its Scan is ErrNoConnection.
func (db *DB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	conn, err := db.acquire(ctx)
	if err != nil {
		return noRows{err}
	}
	return row{found: conn.QueryRow(ctx, sql, args...), conn: conn}
}

// Settings are of the server's, and hold for one statement.
type Settings map[string]string

const setLocally = `
select set_config(name, setting, true)
  from unnest($1::text[], $2::text[]) as s(name, setting)`

// QueryWith is Query under settings that end with it. Both are one transaction in
// one round trip: what the statement writes is durable when the rows have ended
// without an error.
func (db *DB) QueryWith(ctx context.Context, s Settings, sql string, args ...any) (pgx.Rows, error) {
	names := slices.Sorted(maps.Keys(s))
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = s[name]
	}
	return db.queryAfter(ctx, &pgx.QueuedQuery{SQL: setLocally, Arguments: []any{names, values}}, sql, args...)
}

// queryAfter is Query after a statement whose rows nobody reads, in the same
// transaction and round trip.
func (db *DB) queryAfter(ctx context.Context, first *pgx.QueuedQuery, sql string, args ...any) (pgx.Rows, error) {
	conn, err := db.acquire(ctx)
	if err != nil {
		return noRows{err}, err
	}
	b := &pgx.Batch{QueuedQueries: []*pgx.QueuedQuery{first}}
	b.Queue(sql, args...)
	batch := conn.SendBatch(ctx, b)
	_, err = batch.Exec()
	var found pgx.Rows
	if err == nil {
		found, err = batch.Query()
	}
	if err != nil {
		_ = batch.Close() // it says the same
		err = named(conn, err)
		conn.Release()
		return noRows{err}, err
	}
	return &rows{Rows: found, conn: conn, batch: batch}, nil
}

// Read is a statement that reads, and what becomes of its rows.
type Read struct {
	SQL  string
	Args []any
	Rows func(pgx.Rows) error // closes them; nobody looks at them where nil
}

// Read reads one after the other, in one transaction and round trip. What Rows
// returns ends it, as does what the server refuses.
func (db *DB) Read(ctx context.Context, reads ...Read) error {
	conn, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	b := &pgx.Batch{}
	for _, r := range reads {
		b.Queue(r.SQL, r.Args...)
	}
	batch := conn.SendBatch(ctx, b)
	for _, r := range reads {
		if r.Rows == nil {
			_, err = batch.Exec()
		} else {
			rows, _ := batch.Query() // its error is that of the rows
			err = r.Rows(rows)
		}
		if err != nil {
			break
		}
	}
	if closed := batch.Close(); err == nil {
		err = closed
	}
	return named(conn, err)
}

func (db *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := db.pool.Acquire(ctx)
	return conn, named(nil, err)
}

// named is the error of a read. The driver closes a connection whose state is in
// doubt, and has no one name for what went wrong with it.
func named(conn *pgxpool.Conn, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || conn != nil && !conn.Conn().IsClosed() {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNoConnection, err)
}

// rows give back their connection with the last row, or the first error.
type rows struct {
	pgx.Rows

	batch pgx.BatchResults // nil if there is none
	conn  *pgxpool.Conn    // nil once it was given back
	err   error            // as it was then
}

func (r *rows) Close() {
	r.Rows.Close()
	if r.conn == nil {
		return
	}
	err := r.Rows.Err()
	if r.batch != nil {
		err = cmp.Or(err, r.batch.Close()) // which commits
	}
	if err == nil {
		err = replicated(context.Background(), r.conn)
	}
	r.err = named(r.conn, err)
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
	more := r.Rows.Next()
	if !more {
		r.Close()
	}
	return more
}

func (r *rows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

func (r *rows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.Close()
	}
	return values, err
}

// row gives back its connection when it is scanned.
type row struct {
	found pgx.Row
	conn  *pgxpool.Conn
}

func (r row) Scan(dest ...any) error {
	defer r.conn.Release()
	return named(r.conn, r.found.Scan(dest...))
}

// noRows is a read that failed before there was a row.
type noRows struct{ err error }

func (noRows) Close()                                       {}
func (r noRows) Err() error                                 { return r.err }
func (noRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (noRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (noRows) Next() bool                                   { return false }
func (r noRows) Scan(...any) error                          { return r.err }
func (r noRows) Values() ([]any, error)                     { return nil, r.err }
func (noRows) RawValues() [][]byte                          { return nil }
func (noRows) Conn() *pgx.Conn                              { return nil }
func (noRows) TypeMap() *pgtype.Map                         { return nil }
