package inbox_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func note(id, payload string) inbox.Message {
	return inbox.Message{ID: id, Type: "note", OrderingKey: "k", Payload: []byte(payload)}
}

// unreadable is the row of a message with the payload "other" that cannot be stored under its id.
func unreadable(id string) string {
	payload := sha256.Sum256([]byte("other"))
	name := fmt.Sprintf("unreadable:%x", sha256.Sum256(append([]byte(id), payload[:]...)))
	return name + ":" + name + ":dead:f"
}

// Without one of these a processor would fail at its first message, so New refuses to make it.
func TestNew_refusesOptionsThatLackSomething(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("r", 255)
	_, err := inbox.New(inbox.Options{DB: hooked{}, Handle: answer(nil), Receiver: long})
	testdb.Must(t, err)
	for name, o := range map[string]inbox.Options{
		"no DB":                   {Handle: answer(nil), Receiver: "r"},
		"no Handle":               {DB: hooked{}, Receiver: "r"},
		"no Receiver":             {DB: hooked{}, Handle: answer(nil)},
		"a Receiver of 256 bytes": {DB: hooked{}, Handle: answer(nil), Receiver: long + "r"},
	} {
		if _, err := inbox.New(o); err == nil {
			t.Errorf("New accepts %s", name)
		}
	}
}

func TestReceiveAndAppend_storeEachMessageOnce(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
	t.Parallel()
	long := strings.Repeat("x", 256)
	two := strings.Fields(unreadable("\xff") + " " + unreadable(long))
	slices.Sort(two)
	for name, test := range map[string]struct {
		messages []inbox.Message
		became   inbox.Reception
		rows     string // id:key:status:first
	}{
		"one without a key": {[]inbox.Message{{ID: "a"}}, inbox.Reception{New: 1}, "a:a:pending:t"},
		"two of a key":      {[]inbox.Message{note("b", ""), note("a", "")}, inbox.Reception{New: 2}, "a:k:pending:f b:k:pending:t"},
		"one twice": {
			[]inbox.Message{note("a", ""), note("a", ""), note("b", "")},
			inbox.Reception{New: 2, Duplicates: 1},
			"a:k:pending:t b:k:pending:f",
		},
		"one that is known": {[]inbox.Message{note("known", "as before"), note("a", "")}, inbox.Reception{New: 1, Duplicates: 1}, "a:k:pending:t"},
		"two payloads": {
			[]inbox.Message{note("a", ""), note("a", "other"), note("a", "other")},
			inbox.Reception{New: 1, DeadLetters: 1, Duplicates: 1},
			"a:k:pending:t " + unreadable("a"),
		},
		"a known id": {
			[]inbox.Message{note("known", "other"), note("a", "other")},
			inbox.Reception{New: 1, DeadLetters: 1},
			"a:k:pending:t " + unreadable("known"),
		},
		"no id":      {[]inbox.Message{note("", "other"), note("a", "")}, inbox.Reception{New: 1, DeadLetters: 1}, "a:k:pending:t " + unreadable("")},
		"a long key": {[]inbox.Message{{ID: "a", OrderingKey: long, Payload: []byte("other")}}, inbox.Reception{DeadLetters: 1}, unreadable("a")},
		"a long id and invalid UTF-8, of one payload": {[]inbox.Message{note("\xff", "other"), note(long, "other")}, inbox.Reception{DeadLetters: 2}, strings.Join(two, " ")},
		"NUL": {[]inbox.Message{note("a\x00", "other")}, inbox.Reception{DeadLetters: 1}, unreadable("a\x00")},
		"metadata that is long": {
			[]inbox.Message{{ID: "a", Payload: []byte("other"), Metadata: map[string]string{"m": strings.Repeat("x", 9<<20)}}},
			inbox.Reception{DeadLetters: 1},
			unreadable("a"),
		},
		"metadata that is escaped": {
			[]inbox.Message{{ID: "a", Metadata: map[string]string{"m": strings.Repeat("<\"\x01", 300_000)}}},
			inbox.Reception{New: 1},
			"a:a:pending:t",
		},
		"metadata that is no text": {[]inbox.Message{{ID: "a", Metadata: map[string]string{"\x00m": "\x00\xff\\u0000"}}}, inbox.Reception{New: 1}, "a:a:pending:t"},
	} {
		for _, entry := range []string{"Receive", "Append"} {
			t.Run(entry+" "+name, func(t *testing.T) {
				db := fresh(t)
				write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence)
					values ('r', 'known', 'k', 'note', '', '{}', sha256('as before'), 'done', 1, 1)`)
				for _, want := range []inbox.Reception{test.became, {Duplicates: len(test.messages)}} { // a repetition changes nothing
					if entry == "Receive" {
						got, err := processor(t, db, answer(nil)).Receive(t.Context(), test.messages...)
						testdb.Must(t, err)
						testrun.Same(t, "what became of them", want, got)
					} else {
						for _, m := range test.messages {
							testdb.Must(t, send(t.Context(), db, m))
						}
					}
					testrun.Same(t, "the rows", test.rows, testdb.One[string](t, db, `
select string_agg(concat_ws(':', message_id, ordering_key, status, first), ' ' order by message_id) from inbox where message_id <> 'known'`))
				}
			})
		}
	}
}

// Two that store a first message of a key at the same moment do not refuse each other.
func TestAppend_besideAnotherFirstMessageOfItsKey(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	b := &pgx.Batch{}
	inbox.Append(b, "r", note("a", ""))
	tx := testdb.Begin(t, db.Pool(), `select`)
	testdb.Must(t, tx.SendBatch(t.Context(), b).Close())
	second := make(chan error)
	go func() { second <- send(t.Context(), db, note("b", "")) }()
	testrun.Blocked(t, db, 1)
	testdb.Must(t, tx.Commit(t.Context()))
	testdb.Must(t, testrun.Receive(t, "the second commit", second))
	testrun.Same(t, "first", "a", testdb.One[string](t, db, `select message_id from inbox where first`))
}

func TestConsume(t *testing.T) {
	t.Parallel()
	read := func(m *message.Message) (inbox.Message, error) {
		switch m.UUID {
		case "m0":
			return inbox.Message{ID: "m0", OrderingKey: "m0"}, nil
		case "m2":
			return inbox.Message{}, errors.New("unreadable")
		case "m3":
			panic("odd")
		}
		return inbox.Message{}, nil
	}
	for name, refuses := range map[string]bool{"stores and acknowledges": false, "refuses what cannot be stored, and stores it when it can": true} {
		t.Run(name, func(t *testing.T) {
			db, log := fresh(t), &testrun.Log{}
			broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
			for n := range 40 {
				m := message.NewMessage(fmt.Sprint("m", n), nil)
				m.Metadata.Set("ordering_key", m.UUID)
				testdb.Must(t, broker.Publish("topic", m))
			}
			if refuses {
				write(t, db, `alter table inbox rename to away`)
			}
			p := processor(t, db, answer(nil), func(o *inbox.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- p.Consume(ctx, broker, "topic", read) }()
			if refuses {
				testrun.True(t, "a page is refused", func() bool { return strings.Contains(log.String(), "receive failed") })
				write(t, db, `alter table away rename to inbox`)
			}
			testrun.Row(t, db, `select count(*) filter (where status = 'pending' and ordering_key = message_id) = 38
				and count(*) filter (where status = 'dead' and last_error ~ '^(unreadable|panic: odd)') = 2 from inbox`)
			testrun.True(t, "two dead letters are in the log", func() bool {
				return strings.Count(log.String(), `it is a dead letter" receiver=r message_id=unreadable:`) == 2
			})
			want := "<nil>"
			if refuses {
				cancel()
			} else {
				testdb.Must(t, broker.Close())
				want = "consume topic: the subscription ended"
			}
			testrun.Same(t, "the end of Consume", want, fmt.Sprint(testrun.Receive(t, "its error", ended)))
			testdb.Must(t, broker.Close())
		})
	}
}

// A page whose commit found no server is not tried again: the next server may not have its events.
func TestReceive_ofAServerOutOfReach(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	p := processor(t, failing(db, groupcommit.ErrNotCommitted), answer(nil))
	if _, err := p.Receive(t.Context(), note("m", "")); !errors.Is(err, groupcommit.ErrNotCommitted) {
		t.Errorf("the error is %v", err)
	}
	testrun.Same(t, "messages", 0, testdb.One[int](t, db, `select count(*) from inbox`))
	receive(t, p, note("m", ""))
}

// putMany puts messages of a partition into the inbox of the receiver r.
func putMany(t *testing.T, db *postgres.DB, partition string, messages int) {
	t.Helper()
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, first)
		select 'r', $1 || n, $1 || n, $1, 't', '', '{}', '', true from generate_series(1, $2::int) n`, partition, messages)
}

// However many messages one partition has, and however long its handlers take, others are handled.
func TestFairness_aCrowdLeavesSlotsToOthers(t *testing.T) {
	testrun.Long(t, "it handles a crowd of messages")
	t.Parallel()
	for _, slots := range []int{2, 16} {
		t.Run(fmt.Sprint(slots, " slots"), func(t *testing.T) {
			db := fresh(t)
			putMany(t, db, "crowd", 40)
			free := make(chan struct{})
			p := processor(t, db, func(_ context.Context, d *inbox.Delivery) error {
				if d.Partition == "crowd" {
					<-free
				}
				return nil
			}, func(o *inbox.Options) { o.Concurrency = slots })
			start(t, p)
			testrun.Row(t, db, `select count(*) > 0 from inbox where status = 'running'`)
			receive(t, p, inbox.Message{ID: "a", Partition: "crowd"}, inbox.Message{ID: "b", Partition: "other"}, inbox.Message{ID: "c"})
			putMany(t, db, "other", 3)
			putMany(t, db, "", 3)
			testrun.Row(t, db, `select bool_and(status = 'done') from inbox where partition_key <> 'crowd'`)
			close(free)
			done(t, db)
		})
	}
}

// Beside 100,000 messages of one partition and 20,000 of a hundred, the messages of another one do not wait for them,
// also while one is paused.
func TestFairness_aBacklogDelaysNoOther(t *testing.T) {
	testrun.Long(t, "it stores 100,000 messages")
	t.Parallel()
	db := stocked(t)
	putMany(t, db, "paused", 1)
	putMany(t, db, "crowd", 100_000)
	putMany(t, db, "small", 20_000)
	write(t, db, `update inbox set partition_key = 'small' || id % 100 where partition_key = 'small'`)
	p := processor(t, db, answer(nil))
	p.Pause(false, "paused")
	start(t, p)
	testrun.Row(t, db, `select count(*) > 20 from inbox where status = 'done'`)
	putMany(t, db, "other", 3)
	testrun.Row(t, db, `select (select bool_and(status = 'done') from inbox where partition_key = 'other') or count(*) > 6000 from inbox where status = 'done'`)
	if done := testdb.One[int](t, db, `select count(*) from inbox where status = 'done' and partition_key = 'other'`); done < 3 {
		t.Fatalf("of 3 messages of another partition %d are done, and 6,000 others", done)
	}
	t.Log("they waited", testdb.One[time.Duration](t, db, `select max(finished_at - received_at) from inbox where partition_key = 'other'`))
}

// A processor starts the next message as soon as the one before has ended, also one that came while that ran.
func TestProcessor_handOverNeedsNoPoll(t *testing.T) {
	testrun.Long(t, "its handlers are slow")
	t.Parallel()
	const last = 20
	for name, test := range map[string]struct {
		slots, before int // messages that are there before
		key           string
	}{"one slot": {1, last, ""}, "one key": {8, last, "k"}, "one key, one by one": {8, 1, "k"}} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t)
			for n := range test.before {
				put(t, db, strconv.Itoa(n+1), test.key)
			}
			var p *inbox.Processor
			p = processor(t, db, func(ctx context.Context, d *inbox.Delivery) (err error) {
				if n, _ := strconv.Atoi(d.ID); n >= test.before && n < last {
					_, err = p.Receive(ctx, inbox.Message{ID: strconv.Itoa(n + 1), OrderingKey: test.key})
					<-time.After(50 * time.Millisecond) // of the loop's claim
				}
				return err
			}, func(o *inbox.Options) { o.Concurrency = test.slots })
			start(t, p)
			done(t, db)
			if took := testdb.One[time.Duration](t, db, `select max(finished_at) - min(finished_at) from inbox`); took > 18*time.Second {
				t.Errorf("twenty messages took %v, want no pause of a second before each", took)
			}
		})
	}
}

func TestPause(t *testing.T) {
	testrun.Long(t, "it waits for polls")
	t.Parallel()
	db := stocked(t)
	putMany(t, db, "paused", 20)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash) values ('r', 'behind', 'paused1', 't', '', '{}', '')`)
	putMany(t, db, "other", 20)
	p := processor(t, db, answer(nil))
	p.Pause(true)
	start(t, p)
	receive(t, p, inbox.Message{ID: "page"})
	testrun.Row(t, db, `select count(*) = 42 from inbox where status = 'pending'`)
	p.Pause(false, "paused")
	testrun.Row(t, db, `select bool_and((status = 'done') = (partition_key <> 'paused' and message_id <> 'behind')) from inbox`)
	receive(t, p, inbox.Message{ID: "later"}, inbox.Message{ID: "late", Partition: "paused"})
	testrun.Row(t, db, `select bool_and((status = 'done') = (partition_key <> 'paused' and message_id <> 'behind')) from inbox`)
	p.Pause(false)
	done(t, db)
}

// Due times that were written while the clock of the database was ahead are corrected, others are kept.
func TestProcessor_correctsDueTimes(t *testing.T) {
	testrun.Long(t, "it waits for a time that is due")
	t.Parallel()
	db := stocked(t, "new@1", "behind@1", "failed@2", "waited@3", "waits@4", "fails@5")
	write(t, db, `update inbox set due_at = now() + interval '1 hour' where message_id in ('new', 'behind')`)
	write(t, db, `update inbox set due_at = now() + interval '1 hour', attempts = 1, fence = 1 where message_id = 'failed'`)
	write(t, db, `update inbox set due_at = now() + interval '1 day', waits = 1, fence = 1 where message_id = 'waited'`)
	write(t, db, `update inbox set due_at = now() + interval '359 minutes', waits = 1, fence = 1 where message_id = 'waits'`)
	write(t, db, `update inbox set due_at = now() + interval '50 seconds', attempts = 1, fence = 1 where message_id = 'fails'`)
	start(t, processor(t, db, answer(nil), func(o *inbox.Options) { o.Policy.BackoffBase, o.Policy.BackoffCap = time.Second, time.Minute }))
	testrun.Row(t, db, `select bool_and(status = case when message_id in ('waits', 'fails') then 'pending' else 'done' end) from inbox`)
}

// What another program stores behind a message that runs is claimed when that ends, not by the next poll.
func TestProcessor_claimsAtTheEndWhatCameBehind(t *testing.T) {
	testrun.Long(t, "its handlers are slow")
	t.Parallel()
	db, begun, release, wake := testdb.Reused(t), make(chan string, 2), make(chan struct{}), make(chan struct{}, 1)
	start(t, processor(t, db, func(ctx context.Context, d *inbox.Delivery) error {
		begun <- d.ID
		loop.Pause(ctx, time.Hour, release)
		return nil
	}, func(o *inbox.Options) { o.Wake = wake }))
	testrun.Soon(t, 500*time.Millisecond, func(try int) {
		for _, name := range []string{"ahead", "behind"} {
			put(t, db, fmt.Sprint(name, try), fmt.Sprint("k", try))
			loop.Ring(wake)
			if name == "ahead" {
				testrun.Receive(t, "the message ahead", begun)
			}
		}
		<-time.After(50 * time.Millisecond) // of the claim that passes over it
		release <- struct{}{}
		testrun.Receive(t, "the message behind", begun)
		release <- struct{}{}
	})
}

// However many keys a transaction has locked, claims go on, and the other keys are repaired: a repair reads a
// bounded number of keys, and goes on behind them.
func TestPromote_besideManyKeysThatAreLocked(t *testing.T) {
	testrun.Long(t, "it holds many locks")
	t.Parallel()
	db, handled, wake := testdb.Reused(t), make(chan string, 400), make(chan struct{}, 1)
	putMany(t, db, "k", 3300)
	write(t, db, `update inbox set first = false`)
	locked := testdb.Begin(t, db.Pool(), `select from inbox where id % 3 > 0 for update`)
	start(t, processor(t, db, func(_ context.Context, d *inbox.Delivery) error {
		if d.Partition == "" {
			handled <- d.ID
		}
		return nil
	}, func(o *inbox.Options) { o.Wake = wake }))
	testrun.Soon(t, 500*time.Millisecond, func(try int) { // woken, it waits for no poll
		put(t, db, fmt.Sprint("m", try), "")
		wake <- struct{}{}
		testrun.Receive(t, "a message of another key", handled)
	})
	testrun.Row(t, db, `select count(*) = 1100 from inbox where status = 'done' and partition_key <> ''`)
	testdb.Must(t, locked.Rollback(t.Context()))
	done(t, db)
}
