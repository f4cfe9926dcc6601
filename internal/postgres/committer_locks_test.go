package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// The statements' texts are those of fulfillment and inbox, as far as the committer
// looks at them.
const (
	takeStock = `
update stock
   set available = available - 1,
       reserved  = reserved + 1
 where merchant_id = $1
   and sku = $2`

	endMessage = `
update inbox
   set waits = waits + 1
 where id = $1
   and fence = $2`
)

// shop has articles and messages that everybody locks, and two pools on them. Who waits
// for another looks at once whether that is a circle: before a transaction of several
// gives up waiting.
func shop(t *testing.T) (owner *postgres.DB, pools [2]*postgres.DB) {
	t.Helper()
	address := testdb.URL(t)
	owner = open(t, address, postgres.Options{})
	_, err := owner.Pool().Exec(t.Context(), `
insert into merchants (merchant_id) values ('acme'), ('globex');
insert into stock (merchant_id, sku, supplied, available)
select m, 'sku' || n, 1000000, 1000000 from unnest(array['acme', 'globex']) m, generate_series(1, 4) n;
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
select 'r', n, n, 't', '', '{}', '' from generate_series(1, 8) n;
do $$ begin execute format('alter database %I set deadlock_timeout to %L', current_database(), '10ms'); end $$`)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pools {
		pools[i] = open(t, address, postgres.Options{Writes: declared(), MaxConns: 4})
	}
	return owner, pools
}

// TestCrossingLocks: two pools, each of which commits units that lock a few of the
// same rows, never wait for each other in a circle.
func TestCrossingLocks(t *testing.T) {
	testdb.Long(t, "it commits thousands of units")
	t.Parallel()
	owner, pools := shop(t)
	var working sync.WaitGroup
	for i := range 48 {
		random := rand.New(rand.NewPCG(1, uint64(i))) //nolint:gosec // what is done should be the same each time
		working.Go(func() {
			for range 50 {
				if err := pools[i%2].Commit(t.Context(), sale(random)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	working.Wait()
	var units, sold int64
	for _, db := range pools {
		shared := db.Shared()
		units += shared.Units
		if shared.Commits == 0 {
			t.Errorf("shared are %+v", shared)
		}
		db.Close()
	}
	if circles := deadlocks(t, owner); circles > 0 {
		t.Errorf("%d circles of locks", circles)
	}
	err := owner.QueryRow(t.Context(), `select sum(reserved)::bigint from stock`).Scan(&sold)
	if err != nil || sold < units {
		t.Errorf("%d sold by %d units at least, %v", sold, units, err)
	}
}

// deadlocks are those of a database from which all others are about to leave.
func deadlocks(t *testing.T, db *postgres.DB) (found int) {
	t.Helper()
	testdb.Alone(t, db)
	err := db.QueryRow(t.Context(), `select deadlocks from pg_stat_database where datname = current_database()`).Scan(&found)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// sale locks as the steps of a charge do: articles in their order, then a message.
func sale(random *rand.Rand) *pgx.Batch {
	b := &pgx.Batch{}
	merchant := []string{"acme", "globex"}[random.IntN(2)]
	first := 1 + random.IntN(3)
	b.Queue(takeStock, merchant, fmt.Sprintf("sku%d", first))
	if random.IntN(2) == 0 {
		b.Queue(takeStock, merchant, fmt.Sprintf("sku%d", first+1))
	}
	switch message := 1 + random.Int64N(8); random.IntN(3) {
	case 0:
		b.Queue(endMessage, message, int64(0))
	case 1:
		end(b, message, 0)
	}
	return b
}

// TestACircleOfLocksIsLeftEarly: what is ordered by nothing, rows under two keys that
// two others hold crosswise, costs time and is no deadlock.
func TestACircleOfLocksIsLeftEarly(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	one, address := effects(t, postgres.Options{Writes: declared(), SharedCommits: 1})
	other := open(t, address, postgres.Options{})
	tx, err := other.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), insert, 2, 2); err != nil {
		t.Fatal(err)
	}
	gathering, told := make(chan struct{}), make(chan error, 1)
	units := committing(one, batch(1), batch(2))
	units = append(units, func(ctx context.Context) error {
		close(gathering)
		return one.Commit(ctx, batch(3))
	})
	go func() {
		<-gathering
		await.Blocked(t, other, 1) // the units wait for 2, and have 1
		_, err := tx.Exec(t.Context(), insert, 1, 1)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		told <- err // the test may end
	}()
	answers := gathered(t, one, units...)
	if answers[0] != nil && postgres.Constraint(answers[0]) == "" || answers[1] != nil || answers[2] != nil {
		t.Errorf("they were told %v", answers)
	}
	if err := <-told; err != nil && postgres.Constraint(err) == "" {
		t.Errorf("the other one was told %v", err)
	}
	var deadlocks int
	err = other.QueryRow(t.Context(), `select deadlocks from pg_stat_database where datname = current_database()`).Scan(&deadlocks)
	if err != nil || deadlocks != 0 {
		t.Errorf("%d deadlocks, %v", deadlocks, err)
	}
}
