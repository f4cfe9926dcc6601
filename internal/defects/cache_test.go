package defects_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// D5: the document keeps its marks in a cache and its effects elsewhere. Between
// the effect and the mark a process can die. Its lock has a time-out, nothing
// checks the lock when the effect is written, and unlocking frees any holder. Its orders
// are named after the second in which they are made, and a message without an id is known
// by its content.

// cache is the document's store in miniature: a map under a mutex, with the
// commands that the document uses. What is wrong is their order, not the store.
type cache struct {
	mu   sync.Mutex
	keys map[string]string

	checked func() // where set, runs between the check of a message and its lock
}

func newCache() *cache { return &cache{keys: make(map[string]string)} }

func (c *cache) setIfAbsent(key, value string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.keys[key]
	if !known {
		c.keys[key] = value
	}
	return !known
}

func (c *cache) get(key string) (value string, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	value, found = c.keys[key]
	return value, found
}

// del is a command, and what the store does to a key whose time has come.
func (c *cache) del(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.keys, key)
}

var errLocked = errors.New("another process holds the lock")

// process is the document's receiver of messages that have a result.
func (c *cache) process(id string, handle func() (string, error)) (string, error) {
	if result, done := c.get("processed:" + id); done {
		return result, nil
	}
	if c.checked != nil {
		c.checked()
	}
	if !c.setIfAbsent("processing:"+id, "") {
		return "", errLocked
	}
	result, err := handle()
	if err != nil {
		c.del("processing:" + id)
		return "", err
	}
	c.setIfAbsent("processed:"+id, result)
	c.del("processing:" + id)
	return result, nil
}

func (c *cache) receive(id string, handle func() error) error {
	_, err := c.process(id, func() (string, error) { return "", handle() })
	return err
}

func TestD5(t *testing.T) {
	t.Parallel()
	const lock = "processing:m1"
	type scenario func(t *testing.T, store *cache, receive func(func() error) error, pay func() error)
	for name, deliver := range map[string]scenario{
		"a death between effect and mark pays twice": func(t *testing.T, store *cache, receive func(func() error) error, pay func() error) {
			t.Helper()
			hold(t, receive, func() error { _ = pay(); die(); return nil })()
			store.del(lock) // after five minutes
			wantError(t, "the successor", nil, receive(pay))
		},
		"a holder whose lock has ended pays all the same": func(t *testing.T, store *cache, receive func(func() error) error, pay func() error) {
			t.Helper()
			first := hold(t, receive, pay)
			store.del(lock) // after five minutes
			wantError(t, "the successor", nil, receive(pay))
			first()
		},
		"a holder that fails late frees the lock of its successor": func(t *testing.T, store *cache, receive func(func() error) error, pay func() error) {
			t.Helper()
			failLate := hold(t, receive, func() error { return errBroken })
			store.del(lock) // after five minutes
			second := hold(t, receive, pay)
			wantError(t, "a rival", errLocked, receive(pay))
			failLate()
			third := hold(t, receive, pay) // beside the second
			second()
			third()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, store := miniature(t, payments), newCache()
			deliver(t, store,
				func(handle func() error) error { return store.receive("m1", handle) },
				func() error { _, err := db.Exec(t.Context(), pay, "m1"); return err })
			wantPayments(t, db, 2)
		})
	}

	t.Run("two orders of one second get one id", func(t *testing.T) {
		t.Parallel()
		second := time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)
		id := func(at time.Time) string { return fmt.Sprintf("ORD-%d", at.Unix()) }
		wantPaymentsFor(t, 1, id(second), id(second.Add(400*time.Millisecond)))
	})

	t.Run("two equal orders are one", func(t *testing.T) {
		t.Parallel()
		const mug = `{"customer":"c7","item":"a mug"}` // the customer wants two, and orders them one after the other
		wantPaymentsFor(t, 1, contentHash(mug+"shop"), contentHash(mug+"shop"))
	})
}
