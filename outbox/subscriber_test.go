package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

const (
	mostMessages = 500
	mostBytes    = 1 << 20
)

// The transaction of a page is idle while the page is handled, for longer than the pool allows, and
// the receiver has the connections of the pool.
func TestSubscriber_deliversAgainFromTheFirstThatIsRefused(t *testing.T) {
	testrun.Long(t, "it waits for a time-out")
	t.Parallel()
	db, log := testdb.Open(t), &testrun.Log{}
	publish(t, db, numbered(5)...)
	r := read(t, db.Pool(), options{Options: outbox.Options{Log: slog.New(slog.NewTextHandler(log, nil))}, config: func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = 1, "2000"
	}})
	page := r.next(t, 5)
	testdb.Exec(t, r.pool, `select pg_sleep(2.5)`)
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
	testrun.True(t, "the end of the failure is logged", func() bool { return strings.Contains(log.String(), "works again") })
	if line, _, _ := strings.Cut(log.String(), "\n"); !strings.Contains(line, "level=ERROR") ||
		!strings.Contains(line, "topic=letters") || !strings.Contains(line, "refused=3") {
		t.Errorf("the failure is logged as %s", log)
	}
}

// A transaction that stays open, here or in another database of the server, with rows of the
// outbox or without, delays no message of others.
func TestSubscriber_waitsForNoTransactionThatStaysOpen(t *testing.T) {
	testrun.Long(t, "it waits for a full scan")
	t.Parallel()
	db := testdb.Open(t)
	elsewhere := testdb.Open(t)
	foreign := testdb.Begin(t, elsewhere.Pool(), `select pg_current_xact_id()`)
	writing := testdb.Begin(t, db.Pool(), `select pg_current_xact_id()`)
	testdb.Must(t, writing.SendBatch(t.Context(), letters(t, "late")).Close())
	bell := make(chan struct{}, 1)
	r := read(t, db.Pool(), options{Options: outbox.Options{Bell: bell}})
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

// A message that commits long after those with greater ids is found by a full scan, as are all of its transaction.
func TestSubscriber_findsAMessageThatCommitsLateWithASmallerID(t *testing.T) {
	testrun.Long(t, "it waits for a full scan")
	t.Parallel()
	db := testdb.Open(t)
	bell := make(chan struct{}, 1)
	r := read(t, db.Pool(), options{Options: outbox.Options{Bell: bell}, poll: time.Hour})
	late := testdb.Begin(t, db.Pool(), `
insert into outbox (topic, message_id, payload, metadata) select $1, 'late' || n, '', '{}' from generate_series(1, $2::int) n`, topic, mostMessages+1)
	testdb.Exec(t, db.Pool(), `select nextval(pg_get_serial_sequence('outbox', 'id')) from generate_series(1, 3000)`)
	publish(t, db, "early")
	bell <- struct{}{}
	r.wantNext(t, "early")
	testdb.Must(t, late.Commit(t.Context()))
	bell <- struct{}{} // one ring, which may come before the full scan is due
	r.take(t, mostMessages+1)
	wantEmpty(t, db)
}

// A page has at most 500 messages, in the order of their ids, and one mebibyte or one message. What is acknowledged is deleted.
func TestSubscriber_pagesAreBounded(t *testing.T) {
	testrun.Long(t, "its messages are many and large")
	t.Parallel()
	db, small := testdb.Open(t), numbered(2*mostMessages+1)
	publish(t, db, small...)
	for i, length := range []int{1, mostBytes / 2, mostBytes / 2, 2 * mostBytes, 10 * mostBytes, 1, 1} {
		testdb.Exec(t, db.Pool(), `insert into outbox (topic, message_id, payload, metadata) values ($1, $2, $3, '{}')`,
			topic, strconv.Itoa(i), bytes.Repeat([]byte("x"), length))
	}
	for i := range 3 { // metadata counts as it is sent, however well it is packed
		testdb.Exec(t, db.Pool(), `insert into outbox (topic, message_id, payload, metadata) values ($1, $2, '', jsonb_build_object('k', repeat('x', 700000)))`,
			topic, strconv.Itoa(7+i))
	}
	r, left := read(t, db.Pool(), options{}), len(small)+10
	for _, want := range [][]string{
		small[:mostMessages], small[mostMessages : 2*mostMessages], {small[2*mostMessages], "0", "1", "2"}, {"3"}, {"4"}, {"5", "6", "7", "8"}, {"9"},
	} {
		page := r.next(t, len(want))
		testrun.Same(t, "a page", want, ids(page))
		testrun.Same(t, "messages in the outbox", left, testdb.One[int](t, db, `select count(*) from outbox`))
		left -= len(page)
		testrun.Row(t, db, `select exists (select from pg_stat_activity where datname = current_database() and application_name = 'reader' and state = 'idle in transaction')`)
		r.wantNoneNow(t)
		for _, m := range page {
			m.Ack()
		}
	}
	wantEmpty(t, db)
}

// What ends leaves no session; that it leaves no goroutine is seen at the end of the process.
func TestSubscriber_ends(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
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
				r := read(t, db.Pool(), options{Options: outbox.Options{Bell: make(chan struct{})}})
				r.next(t, taken)
				stop(r)
				testrun.True(t, "the channel is closed", func() bool { return testrun.Receive(t, "its end", r.messages) == nil })
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

// A poll that finds nothing locks no row and stores none, so it writes nothing.
func TestSubscriber_writesNothingWhileIdle(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	r := read(t, db.Pool(), options{poll: 5 * time.Millisecond})
	publish(t, db, "m1")
	r.wantNext(t, "m1")
	wantEmpty(t, db)
	const topics = `select jsonb_agg(jsonb_build_array(topic, xmin::text, xmax::text))::text from outbox_topics` // xmax is who locked the row
	const polled = `select max(query_start) from pg_stat_activity where datname = current_database() and application_name = 'reader'`
	before, began := testdb.One[string](t, db, topics), testdb.One[time.Time](t, db, polled)
	testrun.Row(t, db, `select (`+polled+`) > $1::timestamptz + interval '200 ms'`, began)
	testrun.Same(t, "topics", before, testdb.One[string](t, db, topics))
}

// publisher is a function of each message.
type publisher func(m *message.Message) error

func (p publisher) Publish(_ string, messages ...*message.Message) error { return p(messages[0]) }
func (publisher) Close() error                                           { return nil }

// An error or a panic of the publisher costs repetitions, but neither order nor a message.
func TestForward_publishesAgainWhatThePublisherRefused(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, numbered(10)...)
	failures, published := 0, make(chan *message.Message, 10)
	to := publisher(func(m *message.Message) error {
		if failures++; m.UUID != "m0004" || failures > 7 { // three messages and four failures
			published <- m
			return nil
		}
		if failures%2 == 0 {
			panic("planted")
		}
		return errors.New("planted")
	})
	from, ended := outbox.NewSubscriber(db.Pool(), outbox.Options{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- outbox.Forward(ctx, from, topic, to) }()
	for _, want := range numbered(10) {
		m := testrun.Receive(t, want, published)
		testrun.Same(t, "messages", want, m.UUID)
		testrun.Same(t, "metadata", message.Metadata{"type": "letter", "ordering_key": "k"}, m.Metadata)
	}
	wantEmpty(t, db)
	cancel()
	testdb.Must(t, testrun.Receive(t, "the forwarder's end", ended))
	testdb.Must(t, from.Close())
}

func TestForward_returnsTheErrorOfASubscriptionAndItsEnd(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	closed := outbox.NewSubscriber(db.Pool(), outbox.Options{})
	testdb.Must(t, closed.Close())
	if err := outbox.Forward(t.Context(), closed, topic, publisher(nil)); err == nil || !strings.HasPrefix(err.Error(), "subscribe to letters: ") {
		t.Errorf("a closed subscriber: %v", err)
	}
	from := outbox.NewSubscriber(db.Pool(), outbox.Options{})
	publish(t, db, "m0001")
	stop := sync.OnceFunc(func() { go func() { _ = from.Close() }() })
	to := publisher(func(*message.Message) error { stop(); return nil })
	if err := outbox.Forward(t.Context(), from, topic, to); err == nil || err.Error() != "the subscription has ended" {
		t.Errorf("a subscription that ends: %v", err)
	}
}

// A message is the same on both sides in each mode of pgx, alone, in a group commit, and by Send.
func TestMessage_arrivesAsItWasInEachModeOfPgx(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
	t.Parallel()
	for _, mode := range testdb.Modes() {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			pool := testdb.PoolIn(t, url, mode)
			sent := func(id string) outbox.Message {
				return outbox.Message{
					Topic: topic, ID: id, Type: "letter", OrderingKey: "naïve 🔑", Partition: `a'b\c`, Payload: []byte("\x00\xff\\x not text"),
					Metadata: map[string]string{
						outbox.MetadataCorrelationID: "req_1", "": "", `"`: "\u2028", `","type":"x`: "\xff\U0010ffff", outbox.MetadataType: "parcel",
					},
				}
			}
			c := groupcommit.New(pool, groupcommit.Options{Writes: groupcommit.NewStatements(outbox.Writes()...)})
			var work errgroup.Group
			for n := range 8 {
				work.Go(func() error {
					b := &pgx.Batch{}
					return errors.Join(outbox.Append(b, sent(fmt.Sprint("é", n))), c.Commit(t.Context(), b))
				})
			}
			work.Go(func() error {
				return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Send(t.Context(), tx, sent("é8"), sent("é9")) })
			})
			testdb.Must(t, work.Wait())
			want := message.Metadata{
				"type": "letter", "ordering_key": "naïve 🔑", "partition_key": `a'b\c`, "correlation_id": "req_1", "": "", `"`: "\u2028",
				`","type":"x`: "\ufffd\U0010ffff", // what is no text is replaced
			}
			seen := map[string]bool{}
			for _, m := range read(t, pool, options{}).next(t, 10) {
				if diff := cmp.Diff(want, m.Metadata); diff != "" || string(m.Payload) != string(sent("").Payload) {
					t.Errorf("message %s %q, metadata (-want +got):\n%s", m.UUID, m.Payload, diff)
				}
				seen[m.UUID] = true
				m.Ack()
			}
			if len(seen) != 10 {
				t.Errorf("the messages are %v", seen)
			}
			wantEmpty(t, testdb.Connect(t, url))
		})
	}
}

func TestAppend_refusesWhatNoOutboxHolds(t *testing.T) {
	testrun.Long(t, "its messages are large")
	t.Parallel()
	db := testdb.Open(t)
	x := func(n int) string { return strings.Repeat("x", n) }
	for what, m := range map[string]outbox.Message{
		"no topic": {ID: "m"}, "no id": {Topic: topic}, "a long id": {Topic: topic, ID: x(256)},
		"a long key": {Topic: topic, ID: "m", OrderingKey: x(256)}, "a long payload": {Topic: topic, ID: "m", Payload: make([]byte, outbox.MaxPayload+1)},
		"a long type": {Topic: topic, ID: "m", Type: x(256)}, "a long partition": {Topic: topic, ID: "m", Partition: x(256)},
		"an id of 256 bytes": {Topic: topic, ID: strings.Repeat("é", 128)}, "a key that is no text": {Topic: topic, ID: "m", OrderingKey: "\xff"},
		"an id with NUL": {Topic: topic, ID: "m\x00"},
	} {
		b := &pgx.Batch{}
		if err := outbox.Append(b, m); !errors.Is(err, outbox.ErrInvalid) || b.Len() != 0 {
			t.Errorf("%s: %v, %d queued", what, err, b.Len())
		}
		var unused pgx.Tx // nothing is sent before all can be held
		if err := outbox.Send(t.Context(), unused, outbox.Message{Topic: topic, ID: "m"}, m); !errors.Is(err, outbox.ErrInvalid) {
			t.Errorf("%s, sent behind another message: %v", what, err)
		}
	}
	longest, large := strings.Repeat("é", 127)+"x", bytes.Repeat([]byte("0123456789"), 1<<20)
	b := &pgx.Batch{}
	testdb.Must(t, outbox.Append(b, outbox.Message{Topic: topic, ID: longest, OrderingKey: x(255), Payload: large}))
	large[0] = 'x' // the batch has a copy
	testdb.Must(t, outbox.Append(b, outbox.Message{Topic: topic, ID: "empty"}))
	testdb.Must(t, outbox.Append(&pgx.Batch{}, outbox.Message{Topic: topic, ID: "m", Payload: make([]byte, outbox.MaxPayload)}))
	testdb.Must(t, db.Commit(t.Context(), b))
	page := read(t, db.Pool(), options{}).next(t, 1)
	if m := page[0]; m.UUID != longest || len(m.Payload) != len(large) || m.Payload[0] != '0' {
		t.Errorf("message %s with %d bytes", m.UUID, len(m.Payload))
	}
}
