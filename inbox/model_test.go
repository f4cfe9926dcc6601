package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// world observes handlers: at most one runs per key, and each message is done once.
type world struct {
	sync.Mutex
	running map[string]int
	done    map[string]int
	tries   int
}

// TestModel drives two processors with random keys, pages, appends, repeats, waits, failures, and
// kills of a processor, and checks the invariants.
func TestModel(t *testing.T) {
	url := testdb.URL(t)
	open := func() *postgres.DB {
		return testdb.OpenAt(t, url, postgres.Options{Application: "model", Writes: groupcommit.NewStatements(inbox.Writes()...), MaxConns: 10})
	}
	db := open()
	w := &world{running: map[string]int{}, done: map[string]int{}}
	const keys, messages = 12, 1500
	var lost, overlapped int
	ghost := 0.0
	handler := func(db *postgres.DB) inbox.Handler {
		return func(ctx context.Context, d *inbox.Delivery) error {
			w.Lock()
			w.tries++
			w.running[d.OrderingKey]++
			if w.running[d.OrderingKey] > 1 {
				overlapped++ // a message that a dead holder took over may run beside its canceled handler
			}
			w.Unlock()
			once := sync.OnceFunc(func() {
				w.Lock()
				w.running[d.OrderingKey]--
				w.Unlock()
			})
			defer once()
			time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
			switch r := rand.IntN(20); {
			case r == 0:
				return errors.New("random")
			case r == 1:
				return &inbox.WaitError{AtLeast: time.Duration(rand.IntN(50)) * time.Millisecond, Err: errors.New("waits")}
			case r == 2:
				return &inbox.WaitError{AtLeast: time.Hour, NoDeadline: rand.IntN(2) == 0, Err: errors.New("waits for the next one")}
			case r < 8:
				return nil
			}
			once() // the next one may start as soon as the commit is durable
			err := d.Commit(ctx, db, &pgx.Batch{})
			if err == nil {
				w.Lock()
				w.done[d.ID]++
				w.Unlock()
			}
			return err
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var processors []*inbox.Processor
	for range 2 {
		db := open()
		p, err := inbox.New(inbox.Options{
			DB: db, Receiver: "r", Handle: handler(db), Concurrency: 8, Log: slog.New(slog.DiscardHandler),
			Policy: inbox.Policy{BackoffBase: 5 * time.Millisecond, BackoffCap: 20 * time.Millisecond, MaxAttempts: 100, DeadLetters: inbox.DeadLetters(0)},
		})
		testdb.Must(t, err)
		processors = append(processors, p)
		all.Go(func() { testdb.Must(t, p.Run(ctx)) })
	}
	// Nobody may wait behind nothing for long.
	longest := 0.0
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			var behind float64
			err := db.QueryRow(t.Context(), `
select coalesce(max(extract(epoch from clock_timestamp() - greatest(received_at, ended))), 0)
  from (select b.received_at, coalesce((select max(finished_at) from inbox d where d.receiver = b.receiver and d.ordering_key = b.ordering_key), '-infinity') as ended
          from inbox b
         where status = 'pending' and not first
           and not exists (select from inbox f where f.receiver = b.receiver and f.ordering_key = b.ordering_key and f.first)) x`).Scan(&behind)
			if err == nil {
				longest = max(longest, behind)
			}
			if rand.IntN(10) == 0 { // a holder that is dead has claimed a message
				_, err := db.Pool().Exec(t.Context(), `
with one as (select id from inbox where status = 'running' order by random() limit 1 for update skip locked)
update inbox set holder = 'ghost', fence = fence + 1, claimed_at = clock_timestamp() where id in (select id from one)`)
				if err == nil {
					lost++
				}
			}
			var dead float64
			err = db.QueryRow(t.Context(), `select coalesce(max(extract(epoch from clock_timestamp() - claimed_at)), 0) from inbox where status = 'running' and holder = 'ghost'`).Scan(&dead)
			if err == nil {
				ghost = max(ghost, dead)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	var sending sync.WaitGroup
	var conflicts sync.Map
	for s := range 4 {
		sending.Go(func() {
			for n := 0; n < messages; {
				size := 1 + rand.IntN(20)
				var page []inbox.Message
				for range size {
					id := fmt.Sprintf("%d-%d", s, n)
					if rand.IntN(10) == 0 && n > 0 {
						id = fmt.Sprintf("%d-%d", s, rand.IntN(n)) // once more
					} else {
						n++
					}
					page = append(page, inbox.Message{ID: id, OrderingKey: fmt.Sprint("k", rand.IntN(keys)), Payload: []byte("x")})
				}
				if s%2 == 0 {
					_, err := processors[s/2].Receive(t.Context(), page...)
					testdb.Must(t, err)
				} else {
					for _, m := range page {
						for {
							b := &pgx.Batch{}
							inbox.Append(b, "r", m)
							err := db.Commit(t.Context(), b)
							if err == nil {
								break
							}
							conflicts.Store(groupcommit.Constraint(err)+fmt.Sprint(groupcommit.OutcomeOf(err)), err.Error())
						}
					}
				}
				time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
			}
		})
	}
	began := time.Now()
	sending.Wait()
	sent := time.Since(began)
	var open1, total int
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		// what waits for an hour is waiting legally, when nothing comes behind it
		_, err := db.Pool().Exec(t.Context(), `update inbox set due_at = now() where status = 'pending' and first and due_at > now() + interval '1 minute'`)
		testdb.Must(t, err)
		testdb.Must(t, db.QueryRow(t.Context(), `select count(*) filter (where status in ('pending', 'running')), count(*) from inbox`).Scan(&open1, &total))
		if open1 == 0 {
			break
		}
	}
	took := time.Since(began)
	stop()
	<-watched
	all.Wait()
	conflicts.Range(func(k, v any) bool { t.Log("conflict of an append:", k, v); return true })
	w.Lock()
	defer w.Unlock()
	for id, n := range w.done {
		if n > 1 {
			t.Errorf("%s done %d times", id, n)
		}
	}
	var dup, dead int
	testdb.Must(t, db.QueryRow(t.Context(), `select coalesce(sum(duplicates), 0), count(*) filter (where status = 'dead') from inbox`).Scan(&dup, &dead))
	t.Logf("messages %d, duplicates %d, dead %d, open %d, tries %d, sent in %s, all done after %s, longest key without a first %.3f s, overlapped %d, taken by a dead holder %d, longest %.3f s", total, dup, dead, open1, w.tries, sent, took, longest, overlapped, lost, ghost)
	if open1 > 0 || overlapped > lost || longest > 2.5 || ghost > 2.5 || total != 4*messages && total < 4*messages {
		t.Fatal("an invariant is broken")
	}
}
