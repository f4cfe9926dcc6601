package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// unruly is a broker that delivers any of its messages at any time, several at once, until
// each was acknowledged some times, and whose subscriptions end at random.
type unruly struct {
	random *rand.Rand
	nacks  atomic.Int32

	mu   sync.Mutex
	left map[string]int // acknowledgments
}

// next returns any of the messages, or "" if none is left.
func (u *unruly) next() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.left) == 0 {
		return ""
	}
	return slices.Sorted(maps.Keys(u.left))[u.random.IntN(len(u.left))]
}

func (u *unruly) acked(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.left[id]--; u.left[id] <= 0 {
		delete(u.left, id)
	}
}

func (u *unruly) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message, u.random.IntN(5))
	var deliveries sync.WaitGroup
	for range 8 {
		deliveries.Go(func() {
			for id := u.next(); id != "" && ctx.Err() == nil && u.random.IntN(50) > 0; id = u.next() {
				m := message.NewMessage(id, nil)
				select {
				case out <- m:
				case <-ctx.Done():
					return
				}
				select {
				case <-m.Acked():
					u.acked(id)
				case <-m.Nacked():
					u.nacks.Add(1)
				case <-ctx.Done():
				}
			}
		})
	}
	go func() { deliveries.Wait(); close(out) }()
	return out, nil
}

func (*unruly) Close() error { return nil }

// strange is a handler that fails in every way, and whose effects have no guard of their own.
func strange(random *rand.Rand, pool *pgxpool.Pool, db groupcommit.DB) inbox.Handler {
	const effect = `insert into effects values ($1)`
	return func(ctx context.Context, d *inbox.Delivery) error {
		switch random.IntN(8) {
		case 0:
			panic("odd")
		case 1:
			runtime.Goexit()
		case 2:
			return &inbox.WaitError{Err: errors.New("away")}
		case 3:
			b := &pgx.Batch{}
			b.Queue(effect, d.ID)
			return errors.Join(d.Commit(ctx, db, b), errors.New("after all"))
		}
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if _, err := tx.Exec(ctx, effect, d.ID); err != nil {
			return err
		}
		if err := d.Done(ctx, tx); err != nil || random.IntN(5) == 0 {
			return err // rolled back, though it returns nil
		}
		return tx.Commit(ctx)
	}
}

// live consumes and handles for a short while in a process of its own.
func live(ctx context.Context, t *testing.T, url string, u *unruly) {
	t.Helper()
	pool, err := pgxpool.New(ctx, url+"&application_name=victim")
	if err != nil {
		return // the test ends
	}
	defer pool.Close()
	db := groupcommit.New(pool, groupcommit.Options{})
	p := &inbox.Processor{
		DB: db, Receiver: "r", Handle: strange(u.random, pool, db), Concurrency: 2, Drain: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Policy: inbox.Policy{Lease: time.Second, BackoffBase: time.Millisecond, BackoffCap: 20 * time.Millisecond, MaxAttempts: 1000},
	}
	ctx, end := context.WithTimeout(ctx, time.Duration(300+u.random.IntN(1500))*time.Millisecond)
	defer end()
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	for ctx.Err() == nil {
		if err := p.Consume(ctx, inbox.Source{Subscriber: u}); err != nil && !errors.Is(err, inbox.ErrClosed) {
			t.Error(err)
		}
	}
	running.Wait()
}

// endSessions ends some of the sessions of the processes.
func endSessions(t *testing.T, db *postgres.DB, random *rand.Rand) {
	t.Helper()
	for _, pid := range testdb.All[int](t, db, `select pid from pg_stat_activity where application_name = 'victim' and datname = current_database() order by backend_start, pid`) {
		if random.IntN(100) < 15 {
			testdb.Exec(t, db.Pool(), `select pg_terminate_backend($1)`, pid)
		}
	}
}

// Processes come and go, their sessions end in the middle of anything, and so do
// subscriptions.
func TestConsume_besideADyingProcess(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	const messages = 100
	url := testdb.URL(t)
	random := testrun.Rand(t)
	db, u := testdb.Connect(t, url), &unruly{random: random, left: map[string]int{}}
	testdb.Exec(t, db.Pool(), `create table effects (id text)`)
	for n := range messages {
		u.left[strconv.Itoa(n)] = 1 + random.IntN(2)
	}
	ctx, end := context.WithCancel(t.Context())
	var processes sync.WaitGroup
	for range 2 {
		processes.Go(func() {
			for ctx.Err() == nil {
				live(ctx, t, url, u)
			}
		})
	}
	await.Progress(t, "all is done", func() (string, bool) {
		if u.nacks.Load() < 20 {
			endSessions(t, db, random)
		}
		done := testdb.One[int](t, db, `select count(*) from inbox where status = 'done'`)
		return strconv.Itoa(done), done == messages && u.next() == ""
	})
	end()
	processes.Wait()
	await.Row(t, db, `select count(*) = $1 and count(distinct id) = $1 from effects`, messages)
}
