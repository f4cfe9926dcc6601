package postgres_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// faults go on while units are committed.
func faults() []string {
	const cut = `
select pg_terminate_backend(pid)
  from (select pid
          from pg_stat_activity
         where datname = current_database()
           and application_name = 'faults'
         order by random()
         limit 1) as victim`
	return []string{
		cut,
		`alter table effects add column if not exists more text`,
		cut,
		`alter table effects drop column if exists more`,
	}
}

// TestWhatIsToldIsTrue: who is told that a unit is committed finds all of it, who is
// told that it is refused finds nothing of it, and everybody is told: while sessions
// are ended, the table is altered, and some units exclude others at once or at commit.
// A unit that nothing is wrong with is not refused.
func TestWhatIsToldIsTrue(t *testing.T) {
	testdb.Long(t, "it races many against each other")
	t.Parallel()
	owner, address := effects(t, postgres.Options{LockTimeout: -1, StatementTimeout: time.Hour})
	var pools [2]*postgres.DB
	for i := range pools {
		pools[i] = open(t, address, postgres.Options{
			Writes: declared(), MaxConns: 4, Application: "faults", LockTimeout: -1, StatementTimeout: time.Hour,
		})
	}
	const sessions, units, unitsPerFault = 64, 15, 16
	var faulting, working sync.WaitGroup
	due := make(chan struct{}, sessions*units)
	faulting.Go(func() {
		n := 0
		for range due {
			if _, err := owner.Pool().Exec(t.Context(), faults()[n%len(faults())]); err != nil {
				t.Error(err)
			}
			n++
		}
	})
	var ids atomic.Int64
	var mu sync.Mutex
	told := map[int]error{} // by the first of a unit's ids
	for i := range sessions {
		random := rand.New(rand.NewPCG(7, uint64(i))) //nolint:gosec // what is done should be the same each time
		working.Go(func() {
			for range units {
				n := int(ids.Add(1))
				if n%unitsPerFault == 0 {
					due <- struct{}{}
				}
				id := 10 * n
				b := batch(id)
				fault := true
				switch random.IntN(20) {
				case 0:
					b.Queue(insert, id, id)
				case 1:
					b.Queue(insert, id+2, 5) // checked at commit
				case 2:
					b.Queue(insert, 1+random.IntN(4), -id)
				default:
					fault = false
				}
				b.Queue(insert, id+1, id+1)
				err := pools[i%2].Commit(t.Context(), b)
				if err != nil && !fault && !errors.Is(err, postgres.ErrUnknown) && !errors.Is(err, postgres.ErrNotCommitted) {
					t.Errorf("a unit was told %v", err)
				}
				mu.Lock()
				told[id] = err
				mu.Unlock()
			}
		})
	}
	working.Wait()
	close(due)
	faulting.Wait()

	there := map[int]bool{}
	for _, id := range stored(t, owner) {
		there[id] = true
	}
	for id, err := range told {
		switch first, last := there[id], there[id+1]; {
		case first != last:
			t.Errorf("of unit %d a half is stored; it was told %v", id, err)
		case errors.Is(err, postgres.ErrUnknown):
		case first != (err == nil):
			t.Errorf("unit %d is stored: %v; it was told %v", id, first, err)
		}
	}
	if pools[0].Shared().Commits+pools[1].Shared().Commits == 0 {
		t.Error("nobody had company")
	}
	for _, db := range pools {
		await.True(t, "the slots are free", func() bool { return db.FreeSlots() == 2 && db.Pending() == 0 })
	}
}
