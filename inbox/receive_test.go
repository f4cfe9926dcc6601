package inbox_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
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

func TestReceiveAndAppend_storeEachMessageOnce(t *testing.T) {
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
