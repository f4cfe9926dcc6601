package rediscache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gomodule/redigo/redis"
)

// watch reads the state of the database and reaches for a lost Redis, at once
// and then every interval. When it ends the cache finds nothing more.
func (c *Cache) watch(ctx context.Context) {
	tick := time.NewTicker(c.interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		c.look(ctx)
		c.reach(ctx)
		if c.forged.Swap(false) {
			c.entries.fails(ctx, errForged)
		} else {
			c.entries.works(ctx)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	c.reading.Store(nil)
	c.state.close(ctx)
	if pool := c.pool.Swap(nil); pool != nil {
		_ = pool.Close() // connections in use are closed when they come back
	}
}

// look replaces the reading. One that fails may be the beginning of a failover,
// so nothing is known after it.
func (c *Cache) look(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, freshness)
	defer cancel()
	r, err := c.state.read(within)
	c.reading.Store(r)
	if err == nil {
		c.database.works(ctx)
	} else if ctx.Err() == nil {
		c.database.fails(ctx, err)
	}
}

// reach makes a new pool where there is none, and uses it once it can be read.
func (c *Cache) reach(ctx context.Context) {
	if c.pool.Load() != nil {
		return
	}
	pool := c.address.pool()
	if _, err := get(ctx, pool, prefix); err != nil {
		_ = pool.Close()
		if ctx.Err() == nil {
			c.redis.fails(ctx, err)
		}
		return
	}
	c.failures.Store(0)
	c.pool.Store(pool)
	c.redis.works(ctx)
}

// part is one of the things that a cache needs. It logs when that begins to fail
// and when it works again, and nothing in between.
type part struct {
	name    string
	log     *slog.Logger
	failing atomic.Bool
}

func (p *part) fails(ctx context.Context, err error) {
	if refusal, ok := errors.AsType[redis.Error](err); ok {
		// Redis repeats parts of a command that it refuses, an answer among them.
		code, _, _ := strings.Cut(string(refusal), " ")
		if len(code) > len("CLUSTERDOWN") || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			code = "what is no code of Redis"
		}
		err = fmt.Errorf("it is refused with %s", code)
	}
	if !p.failing.Swap(true) {
		p.log.WarnContext(ctx, "the cache of replays does without what fails", "part", p.name, "error", err)
	}
}

func (p *part) works(ctx context.Context) {
	if p.failing.Swap(false) {
		p.log.InfoContext(ctx, "the cache of replays works again", "part", p.name)
	}
}
