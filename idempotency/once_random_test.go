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
	"github.com/payonce/payonce/internal/testrun"
)

// shaky commits over a connection that breaks before, in and after COMMIT.
func shaky(random *rand.Rand) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		switch random.IntN(6) {
		case 0:
			return errors.Join(tx.Commit(ctx), errPlanted)
		case 1:
			socket := tx.Conn().PgConn().Conn()
			time.AfterFunc(time.Duration(random.Int64N(int64(2*time.Millisecond))), func() { _ = socket.Close() })
		}
		return tx.Commit(ctx)
	}
}

var errPlanted = errors.New("planted")

// failing has one effect, and fails in one of many ways.
func failing(random *rand.Rand, cancel func(), key string) func(context.Context, pgx.Tx) (int64, error) {
	value := random.Int64()
	return func(ctx context.Context, tx pgx.Tx) (int64, error) {
		_, err := tx.Exec(ctx, `insert into effects values ($1, $2)`, key, value)
		switch random.IntN(10) {
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
	seeded := testrun.Rand(t)
	for _, level := range levels {
		settings := map[string]string{"default_transaction_isolation": level}
		opened := testdb.OpenAt(t, url, postgres.Options{MaxConns: 3, Settings: settings}).Pool()
		for range 3 {
			random := testrun.Fork(seeded)
			pool := ends{opened, shaky(random)}
			group.Go(func() error {
				for call := range 90 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+random.IntN(200))*time.Millisecond)
					key := fmt.Sprint("k", call/3)
					var value int64
					err := errPlanted
					func() {
						defer func() { _ = recover() }()
						options := idempotency.Options{Wait: waits[random.IntN(3)]}
						value, _, err = idempotency.Once(ctx, pool, idempotency.Key{Value: key}, options, failing(random, cancel, key))
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
