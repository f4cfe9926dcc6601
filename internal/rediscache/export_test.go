package rediscache

import (
	"context"
	"net"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/payonce/payonce/internal/postgres"
)

// ReadEvery sets the time between two reads of the state of the database, and between
// two attempts to reach Redis.
func (o *Options) ReadEvery(d time.Duration) { o.interval = d }

// OpenOn opens a cache that reads the database through a querier.
func OpenOn(ctx context.Context, q postgres.Querier, url string, o Options) (*Cache, error) {
	return open(ctx, queried{q, o.Clock}, url, o)
}

type queried struct {
	postgres.Querier

	clock func() time.Time
}

func (q queried) read(ctx context.Context) (*reading, error) { return read(ctx, q, q.clock) }
func (queried) close(context.Context)                        {}

// Largest is the longest value that is asked for.
const Largest = largest + 1

// Guard is what stands between a connection and the client.
func Guard(conn net.Conn) net.Conn { return guarded(conn) }

// State is what the cache takes for the state of the database, "" while it knows none.
func (c *Cache) State() string {
	if r := c.reading.Load(); r != nil {
		return string(r.key)
	}
	return ""
}

// Break makes the client panic whenever it is used, until Redis is reached anew.
func (c *Cache) Break() {
	broken := &redis.Pool{DialContext: func(context.Context) (redis.Conn, error) { panic("a fault of the client") }}
	if pool := c.pool.Swap(broken); pool != nil {
		_ = pool.Close()
	}
}
