// Package rediscache answers replays of stored answers from Redis. It is an
// idempotency.Cache.
//
// # Guarantees
//
//   - Redis can be stopped, flushed, corrupted, restored or taken over, and no answer
//     differs from the database's. An entry holds fingerprint, answer and expiry, encrypted
//     and bound to scope, operation and key by AES-256-GCM, with a secret that only the
//     database has.
//   - An entry is judged by the database's clock and never outlives its key.
//   - Names and entries depend on the state of the database, so entries from before a
//     failover, a restore, a restart or a truncate are not found. The state is read every
//     second on a connection of its own. Two seconds after the last reading was sent, or
//     at once when a reading fails, nothing is found.
//   - A failure of Redis is a miss. It costs the requests in flight tens of milliseconds,
//     and Redis is not asked again for a second.
//
// # Limits
//
//   - It may find nothing, and finds nothing without the database.
//   - For up to two seconds after a failover an answer that it lost may be replayed; for a
//     minute, the life of the connection, if the old primary still runs as one.
//   - Rows that are deleted by hand are replayed until their entries expire, after
//     Options.Longest at most. A new secret ends that.
//   - Redis knows how long each answer is, and when it is asked for.
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
	"regexp"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	// interval is between two readings of the database, and between a failure of Redis and
	// the next command.
	interval = time.Second
	// connectionLife is how long a connection to the database is used: an old one may be
	// to a server that has been replaced.
	connectionLife = time.Minute
)

// Found says what a look-up found.
type Found string

// What a look-up can find.
const (
	Hit    Found = "hit"    // the answer
	Miss   Found = "miss"   // none, or that of another request
	Failed Found = "failed" // nothing: Redis failed, or the state of the database is unknown
)

// Findings lists what a look-up can find.
func Findings() []Found { return []Found{Hit, Miss, Failed} }

// Options are how a cache is opened.
type Options struct {
	// AllowPlaintext permits a Redis over a network without TLS.
	AllowPlaintext bool
	// Longest is how long an entry is kept at most. Retries come soon.
	Longest time.Duration
	Log     *slog.Logger
	Clock   func() time.Time
	// Counted is called with what each look-up found.
	Counted func(Found)

	interval time.Duration // the constant unless a test sets it
}

// Cache is an idempotency.Cache in Redis, for concurrent use.
type Cache struct {
	Options

	redis  *redis.Pool
	away   atomic.Int64          // Redis failed, and is not asked before this time; 0 if it did not
	warned atomic.Int64          // when a failure was logged
	state  atomic.Pointer[state] // nil while the state of the database is unknown
	close  func()
}

var _ idempotency.Cache = (*Cache)(nil)

// Open opens the cache at a REDIS_URL, redis://user:password@host:port/db or
// rediss://…, for the keys of one database. It connects to neither of them, so what is out
// of reach may come later; its errors are sentences about the URL. The cache works until
// ctx ends or Close is called, and finds nothing after that.
func Open(ctx context.Context, db *postgres.DB, url string, o Options) (*Cache, error) {
	pool, err := newPool(url, o.AllowPlaintext)
	if err != nil {
		return nil, err
	}
	// One connection beside the pool: requests that hold all others do not switch off the
	// cache when it is needed.
	config := db.Pool().Config()
	config.MaxConns, config.MinConns, config.MinIdleConns, config.MaxConnLifetime = 1, 0, 0, connectionLife
	database, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection of the cache: %w", err)
	}
	o.interval = cmp.Or(o.interval, interval)
	c := &Cache{Options: o, redis: pool}
	ctx, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		defer c.state.Store(nil)
		loop.Run(ctx, o.Log, "the cache of replays does without the state of the database", func(ctx context.Context) (time.Duration, error) {
			s, err := readState(ctx, database, c.Clock)
			c.state.Store(s)
			if err != nil {
				database.Reset() // it may be a failover: the next reading connects anew
			}
			return o.interval, err
		})
	}()
	c.close = func() {
		stop()
		<-stopped
		database.Close()
		_ = pool.Close() // connections in use are closed when they return
	}
	return c, nil
}

// Close ends what the cache does in the background.
func (c *Cache) Close() { c.close() }

// Find implements idempotency.Cache.
func (c *Cache) Find(ctx context.Context, key idempotency.Key, fingerprint []byte) idempotency.CacheEntry {
	found, cached := c.find(ctx, key, fingerprint)
	c.Counted(found)
	return cached
}

func (c *Cache) find(ctx context.Context, key idempotency.Key, fingerprint []byte) (Found, idempotency.CacheEntry) {
	s := c.state.Load()
	if !s.isFresh(c.Clock()) {
		return Failed, idempotency.CacheEntry{}
	}
	cached := idempotency.CacheEntry{Keep: func(record idempotency.Record) { c.keep(ctx, s, key, record) }}
	value, err := c.do(ctx, "GETRANGE", s.name(key), 0, largest)
	switch {
	case err != nil:
		return Failed, cached
	case len(value) == 0:
		return Miss, cached
	}
	record, authentic := s.open(key, value)
	if !authentic {
		c.warn(ctx, errForged)
		return Failed, cached
	}
	// The state may have changed while Redis answered.
	now, latest := c.Clock(), c.state.Load()
	if latest.isFresh(now) && latest.equals(s) && record.ExpiresAt.After(latest.at(now)) && bytes.Equal(record.Fingerprint, fingerprint) {
		cached.Record, cached.Found = record, true
		return Hit, cached
	}
	return Miss, cached
}

var errForged = errors.New("an entry is not authentic: it was damaged or forged")

// keep stores a record that was read or committed after the state was read.
//
// If we die here: the answer is in the database, and the next replay from there is kept
// again. Test: TestFind/what_was_never_written_is_answered_by_the_database.
func (c *Cache) keep(ctx context.Context, s *state, key idempotency.Key, record idempotency.Record) {
	value, err := s.seal(key, record)
	// A little less than the key has, never more; the entry tells exactly.
	life := min(record.ExpiresAt.Sub(s.at(c.Clock())), c.Longest)
	if err == nil && life >= time.Millisecond && len(value) <= largest {
		_, _ = c.do(ctx, "SET", s.name(key), value, "PX", life.Milliseconds()) // do logs its failures
	}
}

var (
	errAway     = errors.New("it failed a moment ago")
	refusalCode = regexp.MustCompile(`^[A-Z]{1,11}\b`)
)

// do sends a command to Redis. After a failure, other callers than one a second get
// errAway until a command succeeds. A write that is refused, such as for want of memory, a
// caller that is gone and too many callers are no failures.
func (c *Cache) do(ctx context.Context, command string, args ...any) ([]byte, error) {
	next := func() int64 { return c.Clock().Add(c.interval).UnixNano() }
	if away := c.away.Load(); c.Clock().UnixNano() < away || away > 0 && !c.away.CompareAndSwap(away, next()) {
		return nil, errAway
	}
	conn, err := c.redis.GetContext(ctx)
	var reply []byte
	if err == nil {
		reply, err = redis.Bytes(conn.Do(command, args...))
		_ = conn.Close() // it returns to the pool
	}
	refusal, refused := errors.AsType[redis.Error](err)
	switch {
	case err == nil:
		c.away.Store(0)
		return reply, nil
	case ctx.Err() != nil, errors.Is(err, redis.ErrPoolExhausted):
		return nil, err
	case refused: // Redis repeats parts of a command that it refuses, an answer among them
		err = redis.Error("refused with " + cmp.Or(refusalCode.FindString(string(refusal)), "an unknown code"))
	}
	if !refused || command != "SET" {
		c.away.Store(next())
	}
	c.warn(ctx, err)
	return nil, err
}

// warn logs a failure, and no other one for a minute: it costs time, and no answer.
func (c *Cache) warn(ctx context.Context, err error) {
	last, now := c.warned.Load(), c.Clock().UnixNano()
	if (last == 0 || now-last >= int64(time.Minute)) && c.warned.CompareAndSwap(last, now) {
		c.Log.WarnContext(ctx, "the cache of replays does without what fails", "error", err)
	}
}
