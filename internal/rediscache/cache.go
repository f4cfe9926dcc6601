// Package rediscache answers replays of stored answers from Redis. It is an
// idempotency.Cache.
//
// # Guarantees
//
//   - Redis can be stopped, flushed, corrupted, restored or taken over, and no answer
//     differs from the database's. An entry carries an HMAC over scope, operation, key,
//     fingerprint, answer and expiry, with a secret that only the database has.
//   - An entry is judged by the database's clock and never outlives its key.
//   - Names and HMACs depend on the state of the database, so entries from before a
//     failover, a restore, a restart or a truncate are not found. The state is read every
//     second on a connection of its own. Two seconds after the last reading was sent, or
//     at once when a reading fails, nothing is found.
//   - A failure of Redis is a miss. It costs the requests in flight tens of milliseconds,
//     and Redis is not asked again before it answers a probe, which is sent every second.
//
// # Limits
//
//   - It may find nothing, and finds nothing without the database.
//   - For up to two seconds after a failover an answer that it lost may be replayed; for a
//     minute, the life of the connection, if the old primary still runs as one.
//   - Rows that are deleted by hand are replayed until their entries expire, an hour at
//     most. A new secret ends that.
//   - Answers lie in Redis readable, their keys do not: Redis needs the same care as a
//     database with orders in it.
//
// Table: cache_secret.
package rediscache

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	// interval is between two readings of the database, and between two probes of Redis.
	interval = time.Second
	// connectionLife is how long a connection to the database is used: an old one may be
	// to a server that has been replaced.
	connectionLife = time.Minute
	// longest is how long an entry is kept at most: retries come soon.
	longest = time.Hour
	// waiting is how many answers may wait to be written; more are not kept.
	waiting = 1024
)

// Options are how a cache is opened.
type Options struct {
	// AllowPlaintext permits a Redis over a network without TLS.
	AllowPlaintext bool
	Log            *slog.Logger
	Clock          func() time.Time

	interval time.Duration // the constant unless a test sets it
}

// Cache is an idempotency.Cache in Redis, for concurrent use.
type Cache struct {
	Options

	redis *client
	// database has one connection: requests that hold all others do not switch off the
	// cache when it is needed.
	database *pgxpool.Pool
	queue    chan answer

	state   atomic.Pointer[state] // nil while the state of the database is unknown
	forged  atomic.Bool           // an entry was, since the last check
	failing map[string]bool       // by part; only run uses it

	stop    context.CancelFunc
	stopped chan struct{}
}

var _ idempotency.Cache = (*Cache)(nil)

// answer is a record on its way to Redis.
type answer struct {
	state  *state // from before the record was read or committed
	key    idempotency.Key
	record idempotency.Record
}

// Open opens the cache at a REDIS_URL, redis://user:password@host:port/db or
// rediss://…, for the keys of one database. It connects to neither of them, so what is out
// of reach may come later; its errors are sentences about the URL. The cache works until
// ctx ends or Close is called, and finds nothing after that.
func Open(ctx context.Context, db *postgres.DB, url string, o Options) (*Cache, error) {
	redis, err := newClient(url, o.AllowPlaintext)
	if err != nil {
		return nil, err
	}
	config := db.Pool().Config()
	config.MaxConns, config.MinConns, config.MinIdleConns, config.MaxConnLifetime = 1, 0, 0, connectionLife
	database, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection of the cache: %w", err)
	}
	c := &Cache{
		Options: o, redis: redis, database: database, queue: make(chan answer, waiting),
		failing: map[string]bool{}, stopped: make(chan struct{}),
	}
	ctx, c.stop = context.WithCancel(ctx)
	go c.run(ctx)
	return c, nil
}

// Close ends all that the cache does in the background. Answers that wait to be
// written are not kept.
func (c *Cache) Close() {
	c.stop()
	<-c.stopped
	c.database.Close()
	_ = c.redis.pool.Close() // connections in use are closed when they return
}

// Find implements idempotency.Cache.
func (c *Cache) Find(ctx context.Context, key idempotency.Key, fingerprint []byte) idempotency.Cached {
	s := c.state.Load()
	if !s.isFresh(c.Clock()) {
		return idempotency.Cached{}
	}
	record, found := c.find(ctx, s, key, fingerprint)
	return idempotency.Cached{Record: record, Found: found, Keep: func(record idempotency.Record) {
		select {
		case c.queue <- answer{state: s, key: key, record: record}:
		default: // what finds no place in the queue is not kept
		}
	}}
}

func (c *Cache) find(ctx context.Context, s *state, key idempotency.Key, fingerprint []byte) (idempotency.Record, bool) {
	value, err := c.redis.get(ctx, s.name(key))
	if err != nil || len(value) == 0 {
		return idempotency.Record{}, false
	}
	record, authentic := s.open(key, value)
	if !authentic {
		c.forged.Store(true)
		return idempotency.Record{}, false
	}
	// The state may have changed while Redis answered.
	now, latest := c.Clock(), c.state.Load()
	if !latest.isFresh(now) || !latest.equals(s) || !record.ExpiresAt.After(latest.at(now)) ||
		!bytes.Equal(record.Fingerprint, fingerprint) {
		return idempotency.Record{}, false
	}
	return record, true
}

// run checks database and Redis at once and then every interval, and writes what is to be
// kept.
func (c *Cache) run(ctx context.Context) {
	defer close(c.stopped)
	defer c.state.Store(nil)
	tick := time.NewTicker(cmp.Or(c.interval, interval))
	defer tick.Stop()
	for c.check(ctx); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.check(ctx)
		case a := <-c.queue:
			c.write(ctx, a)
		}
	}
}

var errForged = errors.New("an entry is not authentic: it was damaged or forged")

// check reads the state of the database and probes Redis. A reading that fails may be the
// begin of a failover: the state is unknown after it, and the next reading connects anew.
func (c *Cache) check(ctx context.Context) {
	s, err := readState(ctx, c.database, c.Clock)
	c.state.Store(s)
	if err != nil {
		c.database.Reset()
	}
	c.report(ctx, "database", err)
	c.report(ctx, "redis", c.redis.probe(ctx))
	var forged error
	if c.forged.Swap(false) {
		forged = errForged
	}
	c.report(ctx, "entries", forged)
}

// write sends to Redis what is to be kept.
//
// If we die here: the answer is in the database, and the next replay from there is kept
// again. Test: TestFind/what_was_never_written_is_answered_by_the_database.
func (c *Cache) write(ctx context.Context, a answer) {
	value, err := a.state.seal(a.key, a.record)
	// A little less than the key has, never more; the HMAC tells exactly.
	life := min(a.record.ExpiresAt.Sub(a.state.at(c.Clock())), longest)
	if err != nil || life < time.Millisecond || len(value) > largest {
		return
	}
	err = c.redis.set(ctx, a.state.name(a.key), value, life)
	if err == nil || isRefusal(err) {
		c.report(ctx, "writes", err)
	}
}

// report logs when a part begins to fail and when it works again, and nothing in between.
func (c *Cache) report(ctx context.Context, part string, err error) {
	if c.failing[part] == (err != nil) || ctx.Err() != nil {
		return
	}
	c.failing[part] = err != nil
	if err != nil {
		c.Log.WarnContext(ctx, "the cache of replays does without what fails", "part", part, "error", err)
	} else {
		c.Log.InfoContext(ctx, "the cache of replays works again", "part", part)
	}
}
