// Package rediscache answers replays from Redis. A Cache is a decorator of the read of an
// idempotency key: what it finds was read in PostgreSQL before, and everything else is read there.
package rediscache

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/sony/gobreaker/v2"
)

const (
	largest = 64 << 10    // bytes of an entry
	pause   = time.Second // after a failure
)

var patience = 50 * time.Millisecond // of each dial, write and read

// Read is the type of idempotency.Options.Read.
type Read = func(ctx context.Context, q groupcommit.Querier, key idempotency.Key) (idempotency.KeyState, error)

// Found is what a look-up finds.
type Found string

// What a look-up finds.
const (
	Hit    Found = "hit"    // the answer
	Miss   Found = "miss"   // nothing, or an answer that has expired
	Failed Found = "failed" // Redis did not answer, or the entry is not authentic
)

// Cache is for concurrent use.
type Cache struct {
	pool    *redis.Pool
	secret  []byte
	longest time.Duration
	found   func(Found)
	circuit *gobreaker.CircuitBreaker[any] // open while Redis is not asked
}

// New makes a cache at a redis:// or rediss:// URL. It connects when it is first asked. secret has
// 32 random bytes that Redis does not know; with another one no earlier entry is found. An entry
// is kept for longest at most, and never longer than its key. found is called after each look-up.
func New(url string, secret []byte, longest time.Duration, found func(Found)) *Cache {
	dial := func(ctx context.Context) (redis.Conn, error) {
		return redis.DialURLContext(ctx, url,
			redis.DialConnectTimeout(patience), redis.DialReadTimeout(patience), redis.DialWriteTimeout(patience))
	}
	alive := func(c redis.Conn, idle time.Time) error { // Redis may have restarted during the pause
		if time.Since(idle) < pause {
			return nil
		}
		_, err := c.Do("PING")
		return err
	}
	return &Cache{
		pool:   &redis.Pool{MaxIdle: 64, MaxActive: 64, IdleTimeout: time.Minute, DialContext: dial, TestOnBorrow: alive},
		secret: secret, longest: longest, found: found,
		circuit: gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
			Timeout:     pause,
			ReadyToTrip: func(gobreaker.Counts) bool { return true },
			IsExcluded:  func(err error) bool { return errors.Is(err, errCallerEnded) },
		}),
	}
}

// Close closes the connections to Redis.
func (c *Cache) Close() error { return c.pool.Close() }

// Read asks Redis first, and next for everything that Redis does not have. It keeps the answers
// that next returns.
//
// If we die here: the answer is in PostgreSQL, and the next replay is read and kept from there.
func (c *Cache) Read(next Read) Read {
	return func(ctx context.Context, q groupcommit.Querier, key idempotency.Key) (idempotency.KeyState, error) {
		name, seal := c.entry(key)
		state, found := c.find(ctx, name, seal)
		c.found(found)
		if found == Hit {
			return state, nil
		}
		state, err := next(ctx, q, key)
		if err == nil && state.Found && !state.Expired {
			c.keep(ctx, name, seal, state)
		}
		return state, err
	}
}

func (c *Cache) find(ctx context.Context, name string, seal cipher.AEAD) (state idempotency.KeyState, found Found) {
	value, err := redis.Bytes(c.do(ctx, "GET", name))
	if errors.Is(err, redis.ErrNil) {
		return state, Miss
	}
	if err == nil {
		value, err = seal.Open(nil, nil, value, []byte(name))
	}
	if err == nil {
		err = json.Unmarshal(value, &state)
	}
	switch {
	case err != nil:
		return state, Failed
	case !time.Now().Before(state.ExpiresAt): // whatever Redis does about expiry
		return state, Miss
	}
	return state, Hit
}

func (c *Cache) keep(ctx context.Context, name string, seal cipher.AEAD, state idempotency.KeyState) {
	life := min(state.ExpiresAt.Sub(state.Now), c.longest).Milliseconds()
	text, err := json.Marshal(state)
	if err == nil && life > 0 && len(text) <= largest {
		_, _ = c.do(ctx, "SET", name, seal.Seal(nil, nil, text, []byte(name)), "PX", life) // without it the next read is of PostgreSQL
	}
}

// errCallerEnded says nothing about Redis.
var errCallerEnded = errors.New("the caller does not wait for Redis")

// do sends a command. After a failure Redis is not asked for a second, and then by one caller.
func (c *Cache) do(ctx context.Context, command string, args ...any) (any, error) {
	return c.circuit.Execute(func() (reply any, err error) {
		conn, err := c.pool.GetContext(ctx)
		if err == nil {
			reply, err = conn.Do(command, args...)
			_ = conn.Close() // it returns to the pool
		}
		if err != nil && ctx.Err() != nil {
			err = errCallerEnded
		}
		return reply, err
	})
}

// entry returns the name of a key's entry, from which the key cannot be read, and its cipher.
func (c *Cache) entry(key idempotency.Key) (name string, seal cipher.AEAD) {
	sum := func(of string) []byte {
		h := hmac.New(sha256.New, c.secret)
		h.Write(idempotency.Fingerprint([]byte(of), []byte(key.Scope), []byte(key.Operation), []byte(key.Value)))
		return h.Sum(nil)
	}
	block, err := aes.NewCipher(sum("cipher")) // 32 bytes
	if err == nil {
		seal, err = cipher.NewGCMWithRandomNonce(block)
	}
	if err != nil {
		panic(err) // only another length is refused
	}
	return "answer:" + hex.EncodeToString(sum("name")), seal
}
