package defects_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
)

// D5: the document keeps its marks in a cache and its effects elsewhere. Between
// the effect and the mark a process can die. Its lock has a time-out, nothing
// checks the lock when the effect is written, and unlocking frees any holder. Its orders are named after the second in which they are made, and a message
// without an id is known by its content.

// cache is the document's store in miniature: a map under a mutex, with the
// commands that the document uses. What is wrong is their order, not the store.
type cache struct {
	mu   sync.Mutex
	keys map[string]bool
}

func newCache() *cache { return &cache{keys: make(map[string]bool)} }

func (c *cache) setIfAbsent(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	absent := !c.keys[key]
	c.keys[key] = true
	return absent
}

func (c *cache) exists(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys[key]
}

// del is a command, and what the store does to a key whose time has come.
func (c *cache) del(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.keys, key)
}

var errLocked = errors.New("another process holds the lock")

// receive is the document's receiver.
func (c *cache) receive(id string, handle func() error) error {
	if c.exists("processed:" + id) {
		return nil
	}
	if !c.setIfAbsent("processing:" + id) {
		return errLocked
	}
	if err := handle(); err != nil {
		c.del("processing:" + id)
		return err
	}
	c.setIfAbsent("processed:" + id)
	c.del("processing:" + id)
	return nil
}

func TestD5(t *testing.T) {
	t.Parallel()

	t.Run("a death between effect and mark pays twice", func(t *testing.T) {
		t.Parallel()
		db, store := miniature(t, payments), newCache()
		handle := func() error { _, err := db.Exec(t.Context(), pay, "m1"); return err }
		await.Receive(t, "the first process' end", process(func() {
			_ = store.receive("m1", func() error { _ = handle(); die(); return nil })
		}))
		store.del("processing:m1") // after five minutes
		if err := store.receive("m1", handle); err != nil {
			t.Error(err)
		}
		wantPayments(t, db, 2)
	})

	t.Run("a holder whose lock has ended pays all the same", func(t *testing.T) {
		t.Parallel()
		db, store := miniature(t, payments), newCache()
		handle := func() error { _, err := db.Exec(t.Context(), pay, "m1"); return err }
		begun, wake := make(chan struct{}), make(chan struct{})
		ended := process(func() {
			err := store.receive("m1", func() error { close(begun); <-wake; return handle() })
			if err != nil {
				t.Error(err)
			}
		})
		await.Receive(t, "the first holder", begun)
		store.del("processing:m1") // after five minutes
		if err := store.receive("m1", handle); err != nil {
			t.Error(err)
		}
		close(wake)
		await.Receive(t, "the first holder's end", ended)
		wantPayments(t, db, 2)
	})

	t.Run("a holder that fails late frees the lock of its successor", func(t *testing.T) {
		t.Parallel()
		db, store := miniature(t, payments), newCache()
		hold := func(end error) (finish func()) {
			begun, wake := make(chan struct{}), make(chan struct{})
			ended := process(func() {
				_ = store.receive("m1", func() error {
					close(begun)
					<-wake
					if end != nil {
						return end
					}
					_, err := db.Exec(t.Context(), pay, "m1")
					return err
				})
			})
			await.Receive(t, "a holder", begun)
			return func() { close(wake); await.Receive(t, "a holder's end", ended) }
		}
		failLate := hold(errBroken)
		store.del("processing:m1") // after five minutes
		second := hold(nil)
		if err := store.receive("m1", func() error { return nil }); !errors.Is(err, errLocked) {
			t.Fatalf("the lock is not held: %v", err)
		}
		failLate()
		third := hold(nil) // beside the second
		second()
		third()
		wantPayments(t, db, 2)
	})

	t.Run("two orders of one second get one id", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, `create table orders (order_id text primary key, item text not null)`)
		second := time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)
		for i, item := range []string{"a mug", "a tshirt"} {
			at := second.Add(time.Duration(i) * 400 * time.Millisecond)
			_, err := db.Exec(t.Context(), `insert into orders values ($1, $2)`, fmt.Sprintf("ORD-%d", at.Unix()), item)
			if refused := sqlState(err) == "23505"; refused != (i == 1) {
				t.Errorf("order %d: %v", i+1, err)
			}
		}
		wantCount(t, db, "orders", 1, `select count(*) from orders`)
	})

	t.Run("two equal orders are one", func(t *testing.T) {
		t.Parallel()
		db, store := miniature(t, payments), newCache()
		for range 2 { // the customer wants two mugs, and orders them one after the other
			content, err := json.Marshal(map[string]any{"customer": "c7", "item": "a mug"})
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(append(content, "shop"...))
			id := hex.EncodeToString(sum[:])
			err = store.receive(id, func() error { _, err := db.Exec(t.Context(), pay, id); return err })
			if err != nil {
				t.Error(err)
			}
		}
		wantPayments(t, db, 1)
	})
}
