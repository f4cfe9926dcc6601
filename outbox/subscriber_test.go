package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

const (
	mostMessages = 500
	mostBytes    = 1 << 20
)

func TestSubscriber_deliversInTheOrderOfIDsAndDeletesWhatIsAcknowledged(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, numbered(2*mostMessages+1)...)
	r := read(t, db, options{})
	page := r.next(t, mostMessages)
	testrun.Same(t, "a page", numbered(mostMessages), ids(page))
	r.wantNoneNow(t)
	if n := testdb.One[int](t, db, `select count(*) from outbox`); n != 2*mostMessages+1 {
		t.Errorf("before the acknowledgment %d messages are left", n)
	}
	for _, m := range page {
		m.Ack()
	}
	r.wantNext(t, numbered(2*mostMessages + 1)[mostMessages:]...)
	wantEmpty(t, db)
}

func TestSubscriber_deliversAgainFromTheFirstThatIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, numbered(5)...)
	r := read(t, db, options{})
	page := r.next(t, 5)
	page[0].Ack()
	page[1].Ack()
	page[2].Nack()
	page[3].Ack() // behind the refused one: it is redelivered
	again := r.next(t, 3)
	testrun.Same(t, "messages", numbered(5)[2:], ids(again))
	testrun.Same(t, "messages in the outbox", numbered(5)[2:], testdb.All[string](t, db, `select message_id from outbox order by id`))
	for _, m := range again {
		m.Ack()
	}
	wantEmpty(t, db)
}

func TestSubscriber_deliversAgainWhatIsNotAcknowledgedUntilTheDeadline(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, numbered(3)...)
	log := &testrun.Log{}
	r := read(t, db, options{deadline: 2 * time.Second, Options: outbox.Options{Log: slog.New(slog.NewTextHandler(log, nil))}})
	page := r.next(t, 2)
	page[0].Ack()
	testrun.Receive(t, "the end of the page's context", page[1].Context().Done())
	r.wantNext(t, "m0002", "m0003")
	wantEmpty(t, db)
	testrun.True(t, "the end of the failure is logged", func() bool { return strings.Contains(log.String(), "works again") })
	if line, _, _ := strings.Cut(log.String(), "\n"); !strings.Contains(line, "level=ERROR") ||
		!strings.Contains(line, "topic=letters") || !strings.Contains(line, "refused=2") {
		t.Errorf("the failure is logged as %s", log)
	}
}

// Any login may take any advisory lock, so a reader waits for none. It finds a topic's row that is
// gone, as after a failover that lost it.
func TestSubscriber_locksARowThatOtherLoginsCannotLock(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	r := read(t, db, options{})
	for _, id := range []string{"m1", "m2"} {
		publish(t, db, id)
		m := r.next(t, 1)[0]
		testrun.Same(t, "advisory locks", 0, testdb.One[int](t, db, `
select count(*) from pg_locks join pg_stat_activity using (pid) where locktype = 'advisory' and application_name = 'reader' and datname = current_database()`))
		m.Ack()
		wantEmpty(t, db)
		testrun.Same(t, "topics", []string{topic}, testdb.All[string](t, db, `delete from outbox_topics returning topic`))
	}
}

// A transaction that stays open, here or in another database of the server, with rows of the
// outbox or without, delays no message of others.
func TestSubscriber_waitsForNoTransactionThatStaysOpen(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	elsewhere := testdb.Open(t)
	foreign := testdb.Begin(t, elsewhere.Pool(), `select pg_current_xact_id()`)
	writing := testdb.Begin(t, db.Pool(), `select pg_current_xact_id()`)
	testdb.Must(t, writing.SendBatch(t.Context(), letters(t, "late")).Close())
	bell := make(chan struct{}, 1)
	r := read(t, db, options{Options: outbox.Options{Bell: bell}})
	testrun.Soon(t, time.Second, func(try int) {
		id := fmt.Sprintf("m%d", try)
		publish(t, db, id)
		bell <- struct{}{}
		r.wantNext(t, id)
	})
	testdb.Must(t, foreign.Rollback(t.Context()))
	testdb.Must(t, writing.Commit(t.Context()))
	r.wantNext(t, "late")
	wantEmpty(t, db)
}

// A message that commits long after those with greater ids is found by a full scan, and the
// messages of its transaction are one page after the other.
func TestSubscriber_findsAMessageThatCommitsLateWithASmallerID(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	bell := make(chan struct{}, 1)
	r := read(t, db, options{Options: outbox.Options{Bell: bell}, poll: time.Hour})
	const n = 2 * mostMessages
	fastest := time.Hour
	for range 3 {
		late := testdb.Begin(t, db.Pool(), `
insert into outbox (topic, message_id, payload, metadata) select $1, 'late' || n, '', '{}' from generate_series(1, $2::int) n`, topic, n)
		testdb.Exec(t, db.Pool(), `select nextval(pg_get_serial_sequence('outbox', 'id')) from generate_series(1, 3000)`)
		publish(t, db, "early")
		bell <- struct{}{}
		r.wantNext(t, "early")
		testdb.Must(t, late.Commit(t.Context()))
		bell <- struct{}{} // one ring, which may come before the full scan is due
		r.take(t, mostMessages)
		began := time.Now()
		r.take(t, 1)
		fastest = min(fastest, time.Since(began))
		r.take(t, n-mostMessages-1)
	}
	if fastest > 800*time.Millisecond {
		t.Errorf("from one page to the next it took %v at least, want no second between them", fastest)
	}
	wantEmpty(t, db)
}

func TestSubscriber_aPageHasAtMostOneMebibyteOrOneMessage(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for i, length := range []int{1, mostBytes / 2, mostBytes / 2, 2 * mostBytes, 10 * mostBytes, 1, 1} {
		testdb.Exec(t, db.Pool(), `insert into outbox (topic, message_id, payload, metadata) values ($1, $2, $3, '{}')`,
			topic, strconv.Itoa(i), bytes.Repeat([]byte("x"), length))
	}
	for i := range 3 { // metadata counts as it is sent, however well it is packed
		testdb.Exec(t, db.Pool(), `insert into outbox (topic, message_id, payload, metadata) values ($1, $2, '', jsonb_build_object('k', repeat('x', 700000)))`,
			topic, strconv.Itoa(7+i))
	}
	r := read(t, db, options{})
	for _, want := range []string{"0 1 2", "3", "4", "5 6 7 8", "9"} {
		page := r.next(t, len(strings.Fields(want)))
		testrun.Same(t, "a page", strings.Fields(want), ids(page))
		testrun.Row(t, db, `select exists (select from pg_stat_activity where datname = current_database() and application_name = 'reader' and state = 'idle in transaction')`)
		r.wantNoneNow(t)
		for _, m := range page {
			m.Ack()
		}
	}
	wantEmpty(t, db)
}

// The transaction of a page is idle while the page is handled, for longer than the pool allows, and
// the receiver has the connections of the pool.
func TestSubscriber_isNotCutWhileAReceiverIsSlow(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, "m1")
	r := read(t, db, options{config: func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = 1, "50"
	}})
	m := r.next(t, 1)[0]
	testdb.Exec(t, r.pool, `select pg_sleep(0.2)`)
	m.Ack()
	wantEmpty(t, db)
	r.wantNoneNow(t)
}

// What ends leaves no session; that it leaves no goroutine is seen at the end of the process.
func TestSubscriber_ends(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(r reader){
		"by Close":       func(r reader) { r.stop() },
		"by its context": func(r reader) { r.cancel() },
	} {
		for while, taken := range map[string]int{"while it waits for the bell": 0, "while a page is open": 2, "with messages that were not taken": 1} {
			t.Run(name+" "+while, func(t *testing.T) {
				t.Parallel()
				db := testdb.Open(t)
				if taken > 0 {
					publish(t, db, "m1", "m2")
				}
				r := read(t, db, options{Options: outbox.Options{Bell: make(chan struct{})}})
				r.next(t, taken)
				stop(r)
				testrun.True(t, "the channel is closed", func() bool {
					select {
					case _, open := <-r.messages:
						return !open
					default:
						return false
					}
				})
				r.stop()
				testrun.Row(t, db, `select not exists (select from pg_stat_activity where datname = current_database() and application_name = 'reader')`)
				if n := testdb.One[int](t, db, `select count(*) from outbox`); n != 2 && taken > 0 {
					t.Errorf("%d messages are left of two that were not acknowledged", n)
				}
			})
		}
	}
}

func TestSubscribe_failsWithoutTheTableAndForASecondTopic(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	config := db.Pool().Config()
	config.ConnConfig.RuntimeParams["search_path"], config.ConnConfig.RuntimeParams["application_name"] = "elsewhere", "reader"
	elsewhere, err := pgxpool.NewWithConfig(t.Context(), config)
	testdb.Must(t, err)
	defer elsewhere.Close()
	_, err = outbox.NewSubscriber(elsewhere, outbox.Options{}).Subscribe(t.Context(), topic)
	if err == nil || !strings.HasPrefix(err.Error(), "subscribe to letters: ") || !strings.Contains(err.Error(), `relation "outbox" does not exist`) {
		t.Errorf("without the table: %v", err)
	}
	testrun.Row(t, db, `select not exists (select from pg_stat_activity where datname = current_database() and application_name = 'reader')`)
	subscriber := outbox.NewSubscriber(db.Pool(), outbox.Options{})
	_, err = subscriber.Subscribe(t.Context(), topic)
	testdb.Must(t, err)
	if _, err = subscriber.Subscribe(t.Context(), "parcels"); err == nil {
		t.Error("a subscriber has two topics")
	}
	testdb.Must(t, subscriber.Close())
}

// A poll that finds nothing takes no transaction id, so it writes nothing.
func TestSubscriber_writesNothingWhileIdle(t *testing.T) {
	testdb.Long(t, "nothing else may run on its server")
	t.Parallel()
	server := testrun.Server(t, local.Options{})
	db := testdb.Connect(t, testdb.Migrated(t, server, "outbox"))
	polls := `select xact_commit from pg_stat_database where datname = current_database()`
	xid := `select pg_snapshot_xmax(pg_current_snapshot())::text`
	read(t, db, options{poll: 5 * time.Millisecond})
	testrun.True(t, "no transaction id is taken while fifty transactions run", func() bool {
		id, n := testdb.One[string](t, db, xid), testdb.One[int](t, db, polls)
		testrun.Row(t, db, `select (`+polls+`) > $1`, n+50)
		return testdb.One[string](t, db, xid) == id
	})
}

// Where nothing rings, as behind a pooler that swallows NOTIFY, polls find what was committed.
func TestDoorbell_isNotNeeded(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	r := read(t, db, options{Options: outbox.Options{Bell: make(chan struct{})}})
	testrun.Soon(t, 4*time.Second, func(try int) {
		publish(t, db, fmt.Sprint("m", try))
		r.wantNext(t, fmt.Sprint("m", try))
	})
}

// broker is a publisher that keeps what it is sent.
type broker struct {
	before func(m *message.Message) error // of each message

	mu       sync.Mutex
	stored   []string
	metadata message.Metadata
}

func (b *broker) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		if b.before != nil {
			if err := b.before(m); err != nil {
				return err
			}
		}
		b.mu.Lock()
		b.stored, b.metadata = append(b.stored, m.UUID), m.Metadata
		b.mu.Unlock()
	}
	return nil
}

func (*broker) Close() error { return nil }

// await waits until the broker has the first copies of numbered messages, in their order.
func (b *broker) await(t *testing.T, n int) {
	t.Helper()
	want := numbered(n)
	testrun.Progress(t, fmt.Sprintf("%d messages come", n), func() (string, bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		var got []string
		for _, id := range b.stored {
			if !slices.Contains(got, id) {
				got = append(got, id)
			}
		}
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("messages (-want +got):\n%s", cmp.Diff(want, got))
		}
		return fmt.Sprintf("%d came", len(got)), len(got) == n
	})
}

// forward runs a forwarder until the test ends.
func forward(t *testing.T, from message.Subscriber, to message.Publisher) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- outbox.Forward(ctx, from, topic, to) }()
	t.Cleanup(func() {
		cancel()
		if err := testrun.Receive(t, "the forwarder's end", ended); err != nil {
			t.Error(err)
		}
		testdb.Must(t, from.Close())
	})
}

// An error or a panic of the publisher costs repetitions, but neither order nor a message.
func TestForward_publishesAgainWhatThePublisherRefused(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"by an error": func() error { return errors.New("planted") },
		"by a panic":  func() error { panic("planted") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			publish(t, db, numbered(10)...)
			failures := 0
			to := &broker{before: func(m *message.Message) error {
				if m.UUID == "m0004" && failures < 3 {
					failures++
					return fail()
				}
				return nil
			}}
			forward(t, outbox.NewSubscriber(db.Pool(), outbox.Options{}), to)
			to.await(t, 10)
			wantEmpty(t, db)
			testrun.Same(t, "metadata", message.Metadata{"type": "letter", "ordering_key": "k"}, to.metadata)
		})
	}
}

func TestForward_returnsTheErrorOfASubscriptionAndItsEnd(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	closed := outbox.NewSubscriber(db.Pool(), outbox.Options{})
	testdb.Must(t, closed.Close())
	if err := outbox.Forward(t.Context(), closed, topic, &broker{}); err == nil || !strings.HasPrefix(err.Error(), "subscribe to letters: ") {
		t.Errorf("a closed subscriber: %v", err)
	}
	from := outbox.NewSubscriber(db.Pool(), outbox.Options{})
	publish(t, db, "m0001")
	stop := sync.OnceFunc(func() { go func() { _ = from.Close() }() })
	to := &broker{before: func(*message.Message) error { stop(); return nil }}
	if err := outbox.Forward(t.Context(), from, topic, to); err == nil || err.Error() != "the subscription has ended" {
		t.Errorf("a subscription that ends: %v", err)
	}
}
