package rediscache

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gomodule/redigo/redis"
)

// get reads an entry; nil where there is none. Of a value that is too long it
// reads no more than shows that.
func (c *Cache) get(ctx context.Context, name string) ([]byte, error) {
	pool := c.pool.Load()
	if pool == nil {
		return nil, nil
	}
	value, err := get(ctx, pool, name)
	var refusal redis.Error
	switch {
	case err == nil:
		if c.failures.Load() > 0 {
			c.failures.Store(0)
		}
		return value, nil
	case errors.As(err, &refusal) && strings.HasPrefix(string(refusal), "WRONGTYPE"):
		c.forged.Store(true)
	case ctx.Err() != nil || errors.Is(err, redis.ErrPoolExhausted):
		// The client is gone or there are too many: Redis may be well.
	default:
		c.failed(ctx, pool, err)
	}
	return nil, err
}

func get(ctx context.Context, pool *redis.Pool, name string) (value []byte, err error) {
	defer contain(&err)
	conn, err := pool.GetContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to Redis: %w", err)
	}
	defer func() { _ = conn.Close() }() // it goes back to the pool
	value, err = redis.Bytes(conn.Do("GETRANGE", name, 0, largest))
	if err != nil {
		return nil, fmt.Errorf("read from Redis: %w", err)
	}
	return value, nil
}

// failed leaves Redis alone, until watch has reached it again, once there were
// several failures without a successful read between them: a single slow answer
// must not send a whole storm to the database.
func (c *Cache) failed(ctx context.Context, pool *redis.Pool, err error) {
	if c.failures.Add(1) >= inARow && c.pool.CompareAndSwap(pool, nil) {
		_ = pool.Close() // connections in use are closed when they come back
		c.redis.fails(ctx, err)
	}
}

// write sends to Redis what was kept, as much as there is at a time.
//
// If we die here: the answer is in the database, and the next replay that comes
// from there is kept again.
// Test: TestFind/what_was_never_written_is_answered_by_the_database.
func (c *Cache) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-c.queue:
			c.put(ctx, c.more(a))
		}
	}
}

// more is an answer and those that wait behind it.
func (c *Cache) more(a answer) []answer {
	answers := []answer{a}
	for len(answers) < together {
		select {
		case a = <-c.queue:
			answers = append(answers, a)
		default:
			return answers
		}
	}
	return answers
}

func (c *Cache) put(ctx context.Context, answers []answer) {
	pool := c.pool.Load()
	if pool == nil {
		return
	}
	err := c.set(ctx, pool, answers)
	var refusal redis.Error
	switch {
	case err == nil:
		c.writes.works(ctx)
	case errors.As(err, &refusal): // out of memory, a replica: what is there can be read
		c.writes.fails(ctx, err)
	case ctx.Err() != nil || errors.Is(err, redis.ErrPoolExhausted):
	default:
		c.failed(ctx, pool, err)
	}
}

// set writes all answers in one round trip. It returns the first refusal after it
// has read every reply.
func (c *Cache) set(ctx context.Context, pool *redis.Pool, answers []answer) (err error) {
	defer contain(&err)
	conn, err := pool.GetContext(ctx)
	if err != nil {
		return fmt.Errorf("connect to Redis: %w", err)
	}
	defer func() { _ = conn.Close() }() // it goes back to the pool
	sent := 0
	for _, a := range answers {
		value, err := a.reading.seal(a.key, a.record)
		if err != nil {
			return err
		}
		// A little less than the key has, never more; the seal tells exactly.
		left := min(a.record.ExpiresAt.Sub(a.reading.at(c.clock())), longest).Milliseconds()
		if left <= 0 || len(value) > largest {
			continue
		}
		if err := conn.Send("SET", a.reading.name(a.key), value, "PX", left); err != nil {
			return fmt.Errorf("write to Redis: %w", err)
		}
		sent++
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("write to Redis: %w", err)
	}
	var refused error
	for range sent {
		_, err := redis.String(conn.Receive())
		var refusal redis.Error
		if err != nil && !errors.As(err, &refusal) {
			return fmt.Errorf("write to Redis: %w", err)
		}
		refused = errors.Join(refused, err)
	}
	return refused
}
