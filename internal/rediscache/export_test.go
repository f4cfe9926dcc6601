package rediscache

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Largest is the longest value that is asked for.
const Largest = largest + 1

// Row is how the cache reads the state of the database.
type Row func(ctx context.Context, conn *pgx.Conn, sql string) pgx.Row

// OpenReading opens a cache that reads the state of the database often, through row.
func OpenReading(ctx context.Context, config *pgx.ConnConfig, row Row, url string, o Options) (*Cache, error) {
	o.interval = 20 * time.Millisecond
	return open(ctx, func(ctx context.Context) (connection, error) {
		conn, err := pgx.ConnectConfig(ctx, config)
		return observed{conn, row}, err
	}, url, o)
}

type observed struct {
	*pgx.Conn

	row Row
}

func (o observed) QueryRow(ctx context.Context, sql string, _ ...any) pgx.Row {
	return o.row(ctx, o.Conn, sql)
}

// State is what the cache takes for the state of the database, "" while it knows none.
func (c *Cache) State() string {
	if s := c.state.Load(); s != nil {
		return string(s.key)
	}
	return ""
}
