package inbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func note(id, payload string) inbox.Message {
	return inbox.Message{ID: id, Type: "note", OrderingKey: "k", Payload: []byte(payload)}
}

// odd is the row of a message with the payload "other" that cannot be stored under its id.
func odd(id string) string {
	payload := sha256.Sum256([]byte("other"))
	name := fmt.Sprintf("unreadable:%x", sha256.Sum256(append([]byte(id), payload[:]...)))
	return name + ":" + name + ":dead:f"
}

func TestReceiveAndAppend_storeEachMessageOnce(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	two := strings.Fields(odd("\xff") + " " + odd(long))
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
			"a:k:pending:t " + odd("a"),
		},
		"a known id": {
			[]inbox.Message{note("known", "other"), note("a", "other")},
			inbox.Reception{New: 1, DeadLetters: 1},
			"a:k:pending:t " + odd("known"),
		},
		"no id":      {[]inbox.Message{note("", "other"), note("a", "")}, inbox.Reception{New: 1, DeadLetters: 1}, "a:k:pending:t " + odd("")},
		"a long key": {[]inbox.Message{{ID: "a", OrderingKey: long, Payload: []byte("other")}}, inbox.Reception{DeadLetters: 1}, odd("a")},
		"a long id and invalid UTF-8, of one payload": {[]inbox.Message{note("\xff", "other"), note(long, "other")}, inbox.Reception{DeadLetters: 2}, strings.Join(two, " ")},
		"NUL": {[]inbox.Message{note("a\x00", "other")}, inbox.Reception{DeadLetters: 1}, odd("a\x00")},
		"metadata that is long": {
			[]inbox.Message{{ID: "a", Payload: []byte("other"), Metadata: map[string]string{"m": strings.Repeat("x", 9<<20)}}},
			inbox.Reception{DeadLetters: 1},
			odd("a"),
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

// Each statement of the package works in each mode of pgx, and messages arrive as they were sent.
func TestProcessor_inEachModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			db := fresh(t)
			config := db.Pool().Config()
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			testdb.Must(t, err)
			defer pool.Close()
			commits := groupcommit.New(pool, groupcommit.Options{Writes: groupcommit.NewStatements(inbox.Writes()...)})
			odd := inbox.Message{OrderingKey: "naïve", Payload: []byte("\x00\xff\\x not text"), Metadata: map[string]string{"k": "'\"é "}}
			write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first, holder, fence, attempts, due_at)
				values ('r', 'of-the-dead', 'd', '', '', '{}', '', 'running', true, 'dead', 1, 1, now())`)
			p := processor(t, commits, func(ctx context.Context, d *inbox.Delivery) error {
				switch {
				case strings.HasPrefix(d.ID, "odd") && (!bytes.Equal(d.Payload, odd.Payload) || d.Metadata["k"] != odd.Metadata["k"]):
					return &inbox.DeadLetterError{Err: errors.New("it was changed")}
				case d.ID == "dead":
					return &inbox.DeadLetterError{Err: errClosed}
				case d.ID == "waits" && d.Waits == 0:
					return &inbox.WaitError{Err: errClosed}
				case d.ID == "fails" && d.Attempt == 1:
					return errClosed
				case d.ID == "batch":
					return d.Commit(ctx, commits, &pgx.Batch{})
				case d.ID == "transaction":
					return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return d.Done(ctx, tx) })
				}
				return nil
			}, func(o *inbox.Options) {
				o.Policy.BackoffBase, o.Policy.BackoffCap, o.Policy.Lease = time.Millisecond, time.Millisecond, 300*time.Millisecond
			})
			start(t, p)
			got, err := p.Receive(t.Context(), note("waits", ""), note("batch", ""), note("transaction", ""))
			testrun.Same(t, "what became of them", inbox.Reception{New: 3}, got)
			testdb.Must(t, err)
			var all sync.WaitGroup
			for _, id := range []string{"fails", "dead", "odd 1", "odd 2", "odd 3"} { // of which some share a commit
				m := odd
				m.ID, m.OrderingKey = id, id
				all.Go(func() { testdb.Must(t, send(t.Context(), commits, m)) })
			}
			all.Wait()
			testrun.Row(t, db, `select count(*) = 9 and bool_and(status = case message_id when 'dead' then 'dead' else 'done' end) from inbox`)
			dead, err := deadletter.List(t.Context(), commits, deadletter.Filter{Status: deadletter.StatusDead}, 0, 10)
			if err != nil || len(dead) != 1 || dead[0].MessageID != "dead" {
				t.Fatalf("dead letters: %+v, %v", dead, err)
			}
			testdb.Must(t, deadletter.Discard(t.Context(), commits, dead[0].Number, "ada"))
			n, err := inbox.DeleteExpired(t.Context(), commits, 0, 100)
			testdb.Must(t, err)
			testrun.Same(t, "deleted", 8, n)
		})
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
