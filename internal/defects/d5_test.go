package defects_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
)

// D5: the document keeps its marks in a cache and its effects elsewhere. Between
// the effect and the mark a process can die. Its lock has a time-out, nobody
// checks the lock when the effect is written, and unlocking frees whoever holds
// it. Its orders are named after the second in which they are made, and a message
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

var errLocked = errors.New("somebody else processes it")

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

	t.Run("the document: a death between effect and mark pays twice", func(t *testing.T) {
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

	t.Run("the document: a holder whose lock has ended pays all the same", func(t *testing.T) {
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

	t.Run("the document: who fails late frees the lock of another one", func(t *testing.T) {
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

	t.Run("the document: two orders of one second get one id", func(t *testing.T) {
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

	t.Run("the document: two equal orders are one", func(t *testing.T) {
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

	t.Run("ours: there is nothing between effect and mark to die in", func(t *testing.T) {
		t.Parallel()
		db := ours(t)
		deliver(t, db, message("m1"))
		for _, commits := range []bool{false, true} { // dies before the commit, and after it
			taken := make(chan error, 1)
			w := worker(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
				var err error
				if commits {
					_, err = payAndFinish(ctx, db, d)
				}
				taken <- err
				<-ctx.Done()
				return inbox.Completed, ctx.Err()
			})
			w.Drain = time.Millisecond
			start(t, w)
			if err := await.Receive(t, "a worker", taken); err != nil {
				t.Error(err)
			}
			due(t, db)
		}
		// A third worker has nothing to do with m1: it takes what comes behind.
		deliver(t, db, message("m2"))
		start(t, worker(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			return payAndFinish(ctx, db, d)
		}))
		await.Row(t, db, `select status = 'done' from inbox where message_id = 'm2'`)
		wantCount(t, db, "payments of m1", 1, `select count(*) from payments where message_id = 'm1'`)
	})

	t.Run("ours: a holder whose lease has ended loses its effect with its mark", func(t *testing.T) {
		t.Parallel()
		db := ours(t)
		deliver(t, db, message("m1"))
		begun, wake, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		start(t, worker(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			close(begun)
			<-wake
			result, err := payAndFinish(ctx, db, d)
			ended <- err
			return result, err
		}))
		await.Receive(t, "the first holder", begun)
		due(t, db)
		start(t, worker(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			return payAndFinish(ctx, db, d)
		}))
		await.Row(t, db, `select status = 'done' from inbox`)
		close(wake)
		if err := await.Receive(t, "the first holder's commit", ended); !inbox.IsLost(err) {
			t.Errorf("its commit ended with %v, want a lost lease", err)
		}
		wantPayments(t, db, 1)
	})

	t.Run("ours: who fails late frees nothing", func(t *testing.T) {
		t.Parallel()
		db := ours(t)
		deliver(t, db, message("m1"))
		begun, fail := make(chan struct{}), make(chan struct{})
		late := worker(db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
			close(begun)
			<-fail
			return inbox.Complete, errBroken
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := process(func() { late.Run(ctx) })
		defer cancel()
		await.Receive(t, "the first holder", begun)
		due(t, db)
		heir, finish := make(chan struct{}), make(chan struct{})
		start(t, worker(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			close(heir)
			<-finish
			return payAndFinish(ctx, db, d)
		}))
		await.Receive(t, "the heir", heir)
		cancel()
		close(fail)
		await.Receive(t, "the first holder's end", ended)
		wantCount(t, db, "messages held by the heir", 1, `select count(*) from inbox where status = 'running' and fence = 2 and last_error is null`)
		close(finish)
		await.Row(t, db, `select status = 'done' from inbox`)
		wantPayments(t, db, 1)
	})

	t.Run("ours: two charges of one instant are two", func(t *testing.T) {
		t.Parallel()
		db := ours(t)
		locations := make(map[string]bool)
		for _, key := range []string{"k1", "k2"} { // the same request, under keys of its own
			locations[accept(t, db, key).Location] = true
		}
		if len(locations) != 2 {
			t.Errorf("the charges are %v", locations)
		}
		wantCharges(t, db, 2)
	})

	t.Run("ours: two equal messages are two, one delivered twice is one", func(t *testing.T) {
		t.Parallel()
		db := ours(t)
		first, second := message("m1"), message("m2")
		first.Payload, second.Payload = []byte("a mug"), []byte("a mug")
		deliver(t, db, first)
		deliver(t, db, second)
		deliver(t, db, first)
		start(t, worker(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			return payAndFinish(ctx, db, d)
		}))
		await.Row(t, db, `select count(*) = 2 and bool_and(status = 'done') from inbox`)
		wantPayments(t, db, 2)
	})

	t.Run("ours: content is a key for messages whose sender gives none", func(t *testing.T) {
		t.Parallel()
		db := ours(t)
		extract := idempotency.FirstOf(idempotency.FromHeader("message-id"), idempotency.FromContent("shop"))
		for _, test := range []struct {
			header map[string]string
			taken  bool
		}{
			{map[string]string{"message-id": "m1"}, false},
			{map[string]string{"message-id": "m2"}, false}, // the second mug
			{map[string]string{"message-id": "m2"}, true},
			{nil, false},
			{nil, true}, // nobody can tell whether it is another mug: ContentKey says so
		} {
			key, err := extract(test.header, []byte(`{"customer":"c7","item":"a mug"}`))
			if err != nil {
				t.Fatal(err)
			}
			wantTaken(t, payUnder(t.Context(), db, key), test.taken)
		}
		wantPayments(t, db, 3)
	})
}
