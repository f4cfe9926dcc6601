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

	"github.com/gomodule/redigo/redis"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	// interval is between two readings of the database, and between two attempts
	// to reach a Redis that failed.
	interval = time.Second
	// freshness is how long a reading may be used.
	freshness = 2 * time.Second
	// patience bounds each dial, each write and each read.
	patience = 50 * time.Millisecond
	// inARow is how many failures without a successful read between them make a
	// failure of Redis.
	inARow = 3

	// longest is how long an entry is kept at most: retries come soon, and the
	// memory of Redis is not for the rest.
	longest = time.Hour
	// largest is the longest value that is kept or read.
	largest = 64 << 10

	connections = 64
	idleTime    = time.Minute
	// waiting is how many answers may wait to be written; more are not kept.
	waiting = 1024
	// together is how many of them are written in one round trip.
	together = 64
)

// Options are how a cache is opened.
type Options struct {
	// AllowPlaintext permits a Redis over a network without TLS.
	AllowPlaintext bool
	Log            *slog.Logger
	Clock          func() time.Time

	interval time.Duration // the constant unless a test sets it
}

// Cache is an idempotency.Cache in Redis. Its methods may be called by several
// goroutines.
type Cache struct {
	state   state
	address address
	clock   func() time.Time
	// interval is the constant of that name, except in tests.
	interval time.Duration

	// pool is nil while Redis is left alone, reading while the database is unknown.
	pool     atomic.Pointer[redis.Pool]
	reading  atomic.Pointer[reading]
	queue    chan answer
	failures atomic.Int32 // in a row
	forged   atomic.Bool  // since the last look

	redis, database, entries, writes *part

	stop context.CancelFunc
	done sync.WaitGroup
}

var _ idempotency.Cache = (*Cache)(nil)

// state reads the state of the database.
type state interface {
	read(ctx context.Context) (*reading, error)
	close(ctx context.Context)
}

// answer is a record on its way to Redis.
type answer struct {
	reading *reading // from before the record was read or committed
	key     idempotency.Key
	record  idempotency.Record
}

// Open opens the cache at a REDIS_URL, redis://user:password@host:port/db or
// rediss://…, for the keys of one database, which it reads on a connection beside
// the pool. It asks neither of them, so what is out of reach now may come later;
// its errors are sentences about the URL. The cache works until ctx ends or Close
// is called, and finds nothing after that.
func Open(ctx context.Context, db *postgres.DB, url string, o Options) (*Cache, error) {
	return open(ctx, &session{config: db.Pool().Config().ConnConfig, clock: o.Clock}, url, o)
}

func open(ctx context.Context, s state, url string, o Options) (*Cache, error) {
	a, err := parse(url)
	if err != nil {
		return nil, err
	}
	if err := a.private(); err != nil && !o.AllowPlaintext {
		return nil, err
	}
	c := &Cache{
		state: s, address: a, clock: o.Clock, interval: cmp.Or(o.interval, interval), queue: make(chan answer, waiting),
		redis:    &part{name: "redis", log: o.Log},
		database: &part{name: "database", log: o.Log},
		entries:  &part{name: "entries", log: o.Log},
		writes:   &part{name: "writes", log: o.Log},
	}
	ctx, c.stop = context.WithCancel(ctx)
	c.done.Go(func() { c.watch(ctx) })
	c.done.Go(func() { c.write(ctx) })
	return c, nil
}

// Close ends all that the cache does in the background. Answers that wait to be
// written are not kept.
func (c *Cache) Close() {
	c.stop()
	c.done.Wait()
}

// Find implements idempotency.Cache.
func (c *Cache) Find(ctx context.Context, key idempotency.Key, fingerprint []byte) idempotency.Cached {
	r := c.reading.Load()
	if r == nil || !r.fresh(c.clock()) {
		return idempotency.Cached{}
	}
	record, found := c.find(ctx, r, key, fingerprint)
	return idempotency.Cached{Record: record, Found: found, Keep: func(record idempotency.Record) { c.keep(answer{reading: r, key: key, record: record}) }}
}

func (c *Cache) find(ctx context.Context, r *reading, key idempotency.Key, fingerprint []byte) (idempotency.Record, bool) {
	value, err := c.get(ctx, r.name(key))
	if err != nil || len(value) == 0 {
		return idempotency.Record{}, false
	}
	record, authentic := r.open(key, value)
	if !authentic {
		c.forged.Store(true)
		return idempotency.Record{}, false
	}
	// Redis took its time: what was known before may be over by now.
	now, latest := c.clock(), c.reading.Load()
	if latest == nil || !latest.same(r) || !latest.fresh(now) {
		return idempotency.Record{}, false
	}
	if !record.ExpiresAt.After(latest.at(now)) || !bytes.Equal(record.Fingerprint, fingerprint) {
		return idempotency.Record{}, false
	}
	return record, true
}

// keep never waits: what finds no place in the queue is not kept.
func (c *Cache) keep(a answer) {
	if c.pool.Load() == nil {
		return
	}
	select {
	case c.queue <- a:
	default:
	}
}

var errForged = errors.New("an entry is not authentic: it was damaged or forged")
