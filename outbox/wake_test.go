package outbox_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// late is a delay that a subscriber has that is not woken: it is a tenth of its slow poll.
const late = time.Second

func listening() bool { return true }

// ring rings as a doorbell does: a subscriber that has not heard the last ring hears one.
func ring(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

func TestDoorbell(t *testing.T) {
	t.Parallel()

	t.Run("wakes a subscriber before its slow poll", func(t *testing.T) {
		db := fresh(t)
		bell := make(chan struct{}, 1)
		r := readWhen(t, db, "g", outbox.Options{Bell: bell, Listening: listening})
		await.Soon(t, late, func(int) { // else a slow poll
			publish(t, db, "m1")
			ring(bell)
			r.wantNext(t, "m1")
		})
	})

	t.Run("is not needed: the slow poll finds what a lost ring was for", func(t *testing.T) {
		testdb.Long(t, "it waits for ten seconds")
		t.Parallel()
		db := testdb.Open(t)
		r := readWhen(t, db, "g", outbox.Options{Listening: listening})
		await.True(t, "it reads twice", func() bool { return r.polls.count() > 1 })
		publish(t, db, "m1")
		r.wantNext(t, "m1")
	})

	t.Run("is not waited for while more can be read", func(t *testing.T) {
		db := fresh(t)
		bell := make(chan struct{}, 1)
		r := readWhen(t, db, "g", outbox.Options{Bell: bell, Listening: listening, Capacity: func(context.Context) int { return 1 }})
		await.Soon(t, 5*late, func(int) { // else two hundred
			publish(t, db, numbered(20)...)
			ring(bell)
			r.wantNext(t, numbered(20)...)
		})
	})
}

// A message that an older transaction holds up is read soon after that has ended, though
// no process rings after that.
func TestSubscriber_readsSoonWhatAnOpenTransactionHid(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	bell := make(chan struct{}, 1)
	r := readWhen(t, db, "g", outbox.Options{Bell: bell, Listening: listening})
	await.Soon(t, late, func(int) { // else a slow poll
		older := testdb.Begin(t, db.Pool(), `select pg_current_xact_id()`)
		publish(t, db, "young")
		ring(bell)
		before := r.polls.count()
		await.True(t, "the subscriber has looked for it", func() bool { return r.polls.count() > before+1 })
		r.wantNoneNow(t)
		testdb.Must(t, older.Rollback(t.Context()))
		r.wantNext(t, "young")
	})
}

func TestSubscriber_readsSeldomWhileIdle(t *testing.T) {
	testdb.Long(t, "it waits for seconds")
	t.Parallel()
	db := testdb.Open(t)
	r := readWhen(t, db, "g", outbox.Options{Listening: listening})
	await.True(t, "it reads three times", func() bool { return r.polls.count() > 2 })
	if paused := r.polls.at[2].Sub(r.polls.at[1]); paused < 3*late {
		t.Errorf("it has read again after %v", paused)
	}
}

// Without capacity nothing is read, no transaction is open, and another subscriber
// of the group may read.
func TestSubscriber_readsNothingWithoutCapacity(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	room, asked := make(chan int), make(chan struct{}, 1)
	full := readWhen(t, db, "g", outbox.Options{Capacity: func(ctx context.Context) int {
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case n := <-room:
			return n
		case <-ctx.Done():
			return 0
		}
	}})
	await.Receive(t, "the subscriber has read once and asks for capacity", asked)
	publish(t, db, numbered(10)...)
	settled(t, db)
	room <- 4
	page := full.nextPage(t)
	if n := len(messages(t, page)); n != 4 {
		t.Errorf("the page has %d messages, the capacity was 4", n)
	}
	page.Ack()
	await.Row(t, db, `select not exists (select from pg_stat_activity where datname = current_database() and state = 'idle in transaction')`)
	other := read(t, db, "g")
	other.wantNext(t, numbered(10)[4:]...)
	full.wantNoneNow(t)
}

func TestSubscriber_ends(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(message.Subscriber, context.CancelFunc) error{
		"by Close":       func(s message.Subscriber, _ context.CancelFunc) error { return s.Close() },
		"by its context": func(_ message.Subscriber, cancel context.CancelFunc) error { cancel(); return nil },
	} {
		for where, o := range map[string]outbox.Options{
			"while it waits for the bell": {Listening: listening},
			"while it waits for capacity": {Capacity: func(ctx context.Context) int { <-ctx.Done(); return 0 }},
		} {
			t.Run(name+" "+where, func(t *testing.T) {
				db := fresh(t)
				subscriber := outbox.NewSubscriber(db.Pool(), "g", o)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				pages, err := subscriber.Subscribe(ctx, topic)
				testdb.Must(t, err)
				testdb.Must(t, stop(subscriber, cancel))
				if page := await.Receive(t, "the end", pages); page != nil {
					t.Error("a page has come")
				}
				testdb.Must(t, subscriber.Close())
				if _, err := subscriber.Subscribe(t.Context(), topic); err == nil {
					t.Error("a closed subscriber subscribes")
				}
			})
		}
	}
}

// A database that does not answer keeps no subscriber from closing.
func TestSubscriber_closesBesideASubscriptionThatWaits(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db, err := postgres.Open(t.Context(), testdb.URL(t), postgres.Options{LockTimeout: -1, StatementTimeout: await.Stall, AllowUnsafeDurability: true})
	testdb.Must(t, err)
	defer db.Close()
	lock := testdb.Begin(t, db.Pool(), `lock table outbox_offsets in exclusive mode`)
	subscriber := outbox.NewSubscriber(db.Pool(), "g", outbox.Options{})
	subscribed := make(chan error, 1)
	go func() {
		_, err := subscriber.Subscribe(t.Context(), topic)
		subscribed <- err
	}()
	await.Blocked(t, db, 1)
	closed := make(chan error, 1)
	go func() { closed <- subscriber.Close() }()
	testdb.Must(t, await.Receive(t, "the subscriber's end", closed))
	await.Blocked(t, db, 1) // the caller of Subscribe still waits
	testdb.Must(t, lock.Rollback(t.Context()))
	testdb.Must(t, await.Receive(t, "the subscription", subscribed))
}

// overheard keeps the query by which a subscriber reads a page.
type overheard struct {
	mu    sync.Mutex
	query string
	args  []any
	at    []time.Time // of each poll
}

func (o *overheard) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "from outbox_offsets") {
		o.mu.Lock()
		o.query, o.args = q.SQL, q.Args
		o.at = append(o.at, time.Now())
		o.mu.Unlock()
	}
	return ctx
}

func (o *overheard) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.at)
}

func (o *overheard) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestPoll_writesNothingWhileIdle(t *testing.T) {
	testdb.Long(t, "it polls for a while")
	t.Parallel()
	db := testdb.Open(t)
	r := read(t, db, "g")
	await.True(t, "the subscriber polls", func() bool { return r.polls.count() > 2 })
	r.stop()
	took := func() (id *uint64) {
		tx, err := db.Pool().Begin(t.Context())
		testdb.Must(t, err)
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		rows, err := tx.Query(t.Context(), r.polls.query, r.polls.args...)
		testdb.Must(t, err)
		rows.Close()
		testdb.Must(t, rows.Err())
		testdb.Must(t, tx.QueryRow(t.Context(), `select pg_current_xact_id_if_assigned()`).Scan(&id))
		return id
	}
	if id := took(); id != nil {
		t.Errorf("a poll of an empty outbox took the transaction id %d", *id)
	}
	publish(t, db, "m1")
	await.True(t, "a poll that finds a message locks the offset, and so takes a transaction id", func() bool { return took() != nil })
	read(t, db, "g").wantNext(t, "m1")
	await.True(t, "once it is read, polls take none again", func() bool { return took() == nil })
}
