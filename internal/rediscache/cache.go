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
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	// interval is between two readings of the database, and between two probes of Redis.
	interval = time.Second
	// freshness is how long a reading may be used.
	freshness = 2 * time.Second
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
	redis   *client
	connect func(context.Context) (connection, error)
	clock   func() time.Time
	queue   chan answer

	state  atomic.Pointer[state] // nil while the state of the database is unknown
	forged atomic.Bool           // an entry was, since the last reading

	server, database, entries, writes condition

	stop context.CancelFunc
	done sync.WaitGroup
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
	config := db.Pool().Config().ConnConfig
	return open(ctx, func(ctx context.Context) (connection, error) { return pgx.ConnectConfig(ctx, config) }, url, o)
}

func open(ctx context.Context, connect func(context.Context) (connection, error), url string, o Options) (*Cache, error) {
	redis, err := newClient(url, o)
	if err != nil {
		return nil, err
	}
	c := &Cache{
		redis: redis, connect: connect, clock: o.Clock, queue: make(chan answer, waiting),
		server:   condition{part: "redis", log: o.Log},
		database: condition{part: "database", log: o.Log},
		entries:  condition{part: "entries", log: o.Log},
		writes:   condition{part: "writes", log: o.Log},
	}
	ctx, c.stop = context.WithCancel(ctx)
	c.done.Go(func() { c.watch(ctx, cmp.Or(o.interval, interval)) })
	c.done.Go(func() { c.write(ctx) })
	return c, nil
}

// Close ends all that the cache does in the background. Answers that wait to be
// written are not kept.
func (c *Cache) Close() {
	c.stop()
	c.done.Wait()
	_ = c.redis.pool.Close() // connections in use are closed when they return
}

// Find implements idempotency.Cache.
func (c *Cache) Find(ctx context.Context, key idempotency.Key, fingerprint []byte) idempotency.Cached {
	s := c.state.Load()
	if s == nil || !s.fresh(c.clock()) {
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
	if isWrongType(err) {
		c.forged.Store(true)
	}
	if err != nil || len(value) == 0 {
		return idempotency.Record{}, false
	}
	record, authentic := s.open(key, value)
	if !authentic {
		c.forged.Store(true)
		return idempotency.Record{}, false
	}
	// The state may have changed while Redis answered.
	now, latest := c.clock(), c.state.Load()
	if latest == nil || !latest.same(s) || !latest.fresh(now) ||
		!record.ExpiresAt.After(latest.at(now)) || !bytes.Equal(record.Fingerprint, fingerprint) {
		return idempotency.Record{}, false
	}
	return record, true
}

// write sends to Redis what was kept.
//
// If we die here: the answer is in the database, and the next replay from there is kept
// again. Test: TestFind/what_was_never_written_is_answered_by_the_database.
func (c *Cache) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-c.queue:
			value, err := a.state.seal(a.key, a.record)
			// A little less than the key has, never more; the HMAC tells exactly.
			life := min(a.record.ExpiresAt.Sub(a.state.at(c.clock())), longest)
			if err == nil && life >= time.Millisecond && len(value) <= largest {
				err = c.redis.set(ctx, a.state.name(a.key), value, life)
				if err == nil || isRefusal(err) {
					c.writes.report(ctx, err)
				}
			}
		}
	}
}

// watch reads the state of the database and probes Redis, at once and then every interval. A reading that fails may be the begin of a failover, so the
// state is unknown after it.
func (c *Cache) watch(ctx context.Context, every time.Duration) {
	reader := &reader{connect: c.connect, clock: c.clock}
	defer reader.close(ctx)
	defer c.state.Store(nil)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		s, err := reader.read(ctx)
		c.state.Store(s)
		c.database.report(ctx, err)
		c.server.report(ctx, c.redis.probe(ctx))
		var forged error
		if c.forged.Swap(false) {
			forged = errForged
		}
		c.entries.report(ctx, forged)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

var errForged = errors.New("an entry is not authentic: it was damaged or forged")

// condition logs when a part begins to fail and when it works again, and nothing in
// between.
type condition struct {
	part    string
	log     *slog.Logger
	failing atomic.Bool
}

func (c *condition) report(ctx context.Context, err error) {
	switch before := c.failing.Load(); {
	case err != nil && !before && ctx.Err() == nil:
		c.failing.Store(true)
		c.log.WarnContext(ctx, "the cache of replays does without what fails", "part", c.part, "error", err)
	case err == nil && before:
		c.failing.Store(false)
		c.log.InfoContext(ctx, "the cache of replays works again", "part", c.part)
	}
}
