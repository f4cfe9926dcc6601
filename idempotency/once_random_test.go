package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// shaky commits over a connection that breaks before, in and after COMMIT.
func shaky(ctx context.Context, tx pgx.Tx) error {
	switch rand.N(6) {
	case 0:
		return errors.Join(tx.Commit(ctx), errPlanted)
	case 1:
		socket := tx.Conn().PgConn().Conn()
		time.AfterFunc(rand.N(2*time.Millisecond), func() { _ = socket.Close() })
	}
	return tx.Commit(ctx)
}

var errPlanted = errors.New("planted")

// failing has one effect, and fails in one of many ways.
func failing(cancel func(), key string, value int64) func(context.Context, pgx.Tx) (int64, error) {
	return func(ctx context.Context, tx pgx.Tx) (int64, error) {
		_, err := tx.Exec(ctx, `insert into effects values ($1, $2)`, key, value)
		switch rand.N(10) {
		case 0:
			return 0, errPlanted
		case 1:
			panic(errPlanted)
		case 2:
			cancel()
		case 3:
			_ = tx.Conn().PgConn().Conn().Close()
		}
		return value, err
	}
}

// TestOnce_underFaults calls functions that fail in each way, at each isolation level, over
// connections that break. Each key has the effects of its one result.
func TestOnce_underFaults(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	db := testdb.OpenAt(t, url, postgres.Options{})
	testdb.Exec(t, db.Pool(), `create table effects (key text, value bigint)`)
	levels := []string{"read committed", "repeatable read", "serializable"}
	waits := []time.Duration{0, idempotency.NoWait, 5 * time.Millisecond}
	var mu sync.Mutex
	results := map[string]int64{}
	var group errgroup.Group
	for _, level := range levels {
		pool := ends{testdb.OpenAt(t, url, postgres.Options{MaxConns: 3, Settings: map[string]string{"default_transaction_isolation": level}}).Pool(), shaky}
		for range 3 {
			group.Go(func() error {
				for call := range 90 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.N(200))*time.Millisecond)
					key := fmt.Sprint("k", call/3)
					var value int64
					err := errPlanted
					func() {
						defer func() { _ = recover() }()
						value, _, err = idempotency.Once(ctx, pool, idempotency.Key{Value: key}, idempotency.Options{Wait: waits[rand.N(3)]}, failing(cancel, key, rand.Int64()))
					}()
					cancel()
					mu.Lock()
					if first, ok := results[key]; err == nil && ok && first != value {
						t.Errorf("%s has the results %d and %d", key, first, value)
					} else if err == nil {
						results[key] = value
					}
					mu.Unlock()
				}
				return nil
			})
		}
	}
	_ = group.Wait() // no error
	if len(results) == 0 {
		t.Error("no call passed")
	}
	for key, value := range results {
		if got := testdb.All[int64](t, db, `select value from effects where key = $1`, key); len(got) != 1 || got[0] != value {
			t.Errorf("%s: effects %v, result %d", key, got, value)
		}
	}
	if wrong := testdb.All[string](t, db, `
select coalesce(k.key, e.key)
  from idempotency_keys as k
  full join effects as e on e.key = k.key and convert_from(k.body, 'UTF8') = e.value::text
 where k.key is null or e.key is null`); len(wrong) > 0 {
		t.Errorf("not one effect for one answer: %v", wrong)
	}
}
