package inbox_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

const topic = "letters"

// post commits messages to the outbox together, so that they are read together.
func post(t fataler, db *postgres.DB, messages ...outbox.Message) {
	t.Helper()
	b := &pgx.Batch{}
	for _, m := range messages {
		m.Topic = topic
		must(t, outbox.Append(b, m))
	}
	must(t, db.Commit(t.Context(), b))
}

func letter(id, payload string) outbox.Message {
	return outbox.Message{ID: id, Type: "letter", OrderingKey: "k", Payload: []byte(payload)}
}

// storing is a processor that does not run: it stores what it receives.
func storing(db *postgres.DB, receiver string) *inbox.Processor {
	return &inbox.Processor{DB: db, Receiver: receiver, Log: slog.New(slog.DiscardHandler)}
}

// asSent reads a message as it was sent.
func asSent(m *message.Message) (inbox.Message, error) {
	return inbox.Message{Type: m.Metadata.Get(outbox.MetadataType), OrderingKey: m.Metadata.Get(outbox.MetadataOrderingKey), Partition: m.Metadata.Get(outbox.MetadataPartition)}, nil
}

// receive takes messages from the outbox into the inbox of a receiver until stop, or
// until the test ends, and returns what it logs.
func receive(t *testing.T, db *postgres.DB, receiver string) (lines *diary, stop func()) {
	t.Helper()
	lines, stop = receiveWith(t, db, storing(db, receiver), asSent, nil)
	await.Row(t, db, `select exists (select from outbox_offsets where consumer_group = $1)`, receiver)
	return lines, stop
}

// receiveFor takes messages from the outbox for a processor, as many as it has room
// for.
func receiveFor(t *testing.T, db *postgres.DB, p *inbox.Processor) {
	t.Helper()
	receiveWith(t, db, p, asSent, p.Capacity)
}

func receiveWith(t *testing.T, db *postgres.DB, p *inbox.Processor, read func(*message.Message) (inbox.Message, error), room func(context.Context) int) (lines *diary, stop func()) {
	t.Helper()
	lines = &diary{}
	p.Log = slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
	subscriber := outbox.NewSubscriber(db.Pool(), p.Receiver, outbox.Options{Capacity: room})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Consume(ctx, inbox.Source{Subscriber: subscriber, Topic: topic, Split: outbox.Messages, Require: outbox.SameTimeline, Read: read}); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		if err := subscriber.Close(); err != nil {
			t.Error(err)
		}
		await.Receive(t, "the receiver's end", ended)
	}
	t.Cleanup(stop)
	return lines, stop
}

// wantReceived wants these messages in the inbox, by receiver and id, with their duplicates.
func wantReceived(t *testing.T, db *postgres.DB, want map[string]int) {
	t.Helper()
	got := one[map[string]int](t, db, `select coalesce(jsonb_object_agg(receiver || ' ' || message_id, duplicates), '{}') from inbox`)
	testrun.Same(t, "messages and their duplicates", want, got)
}

// awaitReceived waits until all receivers, at least one, have passed all of the outbox.
func awaitReceived(t *testing.T, db *postgres.DB) {
	t.Helper()
	await.Row(t, db, `
select exists (select from outbox_offsets)
   and not exists (
         select
           from outbox m
          cross join outbox_offsets o
          where (m.transaction_id, m."offset") > (o.transaction_id, o."offset"))`)
}

func TestReceive(t *testing.T) {
	t.Parallel()

	t.Run("a message is received as it was sent", func(t *testing.T) {
		db := fresh(t)
		post(t, db, outbox.Message{
			ID: "m1", Type: "letter", OrderingKey: "naïve 🔑", Payload: []byte("\x00\xff"),
			Metadata: map[string]string{"correlation_id": "req_1"},
		})
		receive(t, db, "r")
		awaitReceived(t, db)
		await.Row(t, db, `
select ordering_key = 'naïve 🔑'
       and type = 'letter'
       and status = 'pending'
       and payload = '\x00ff'
       and payload_hash = sha256(payload)
       and metadata = '{"correlation_id": "req_1", "type": "letter", "ordering_key": "naïve 🔑"}'
  from inbox`)
	})

	t.Run("a redelivered message is counted and not received again", func(t *testing.T) {
		db := fresh(t)
		post(t, db, letter("m1", "x"))
		post(t, db, letter("m2", "x"))
		post(t, db, letter("m1", "x"))
		receive(t, db, "r")
		awaitReceived(t, db)
		wantReceived(t, db, map[string]int{"r m1": 1, "r m2": 0})
		write(t, db, `update outbox_offsets set transaction_id = '0', "offset" = 0`)
		awaitReceived(t, db)
		wantReceived(t, db, map[string]int{"r m1": 3, "r m2": 1})
		write(t, db, `update inbox set status = 'done', done_fence = fence`)
		post(t, db, letter("m1", "x"))
		awaitReceived(t, db)
		wantReceived(t, db, map[string]int{"r m1": 4, "r m2": 1})
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
	})

	t.Run("each of several receivers takes it", func(t *testing.T) {
		db := fresh(t)
		post(t, db, letter("m1", "x"))
		post(t, db, letter("m1", "x"))
		receive(t, db, "charges")
		receive(t, db, "notifications")
		awaitReceived(t, db)
		wantReceived(t, db, map[string]int{"charges m1": 1, "notifications m1": 1})
	})

	t.Run("whatever the outbox holds can be received", func(t *testing.T) {
		db := fresh(t)
		for i, metadata := range []string{`{}`, `{"type": 1}`, `{"type": null}`, `{"type": ["\ud83d\ude00"]}`, `{"": ""}`} {
			write(t, db, `insert into outbox (topic, message_id, payload, metadata) values ($1, $2, '', $3)`, topic, strconv.Itoa(i), metadata)
		}
		post(t, db, letter("last", "x"))
		receive(t, db, "r")
		awaitReceived(t, db)
		wantReceived(t, db, map[string]int{"r 0": 0, "r 1": 0, "r 2": 0, "r 3": 0, "r 4": 0, "r last": 0})
		await.Row(t, db, `select bool_and(ordering_key = message_id) from inbox where message_id <> 'last'`)
	})

	t.Run("also a key that no index can hold, which stays one key", func(t *testing.T) {
		db := fresh(t)
		long := random(6000)
		post(t, db, letter("m1", "x"))
		for i, key := range []string{long, long + "x", long} { // as others may write
			write(t, db, `insert into outbox (topic, message_id, payload, metadata) values ($1, $2, '', jsonb_build_object('type', 't', 'ordering_key', $3::text))`,
				topic, fmt.Sprint("m", i+2), key)
		}
		post(t, db, letter("m5", "x"))
		receive(t, db, "r")
		awaitReceived(t, db)
		wantReceived(t, db, map[string]int{"r m1": 0, "r m2": 0, "r m3": 0, "r m4": 0, "r m5": 0})
		keys := one[[]string](t, db, `select array_agg(ordering_key order by message_id) from inbox`)
		hash := func(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }
		testrun.Same(t, "keys", []string{"k", hash(long), hash(long + "x"), hash(long), "k"}, keys)
	})

	t.Run("what a process stored and did not start is taken over", func(t *testing.T) {
		t.Parallel()
		url := testdb.URL(t)
		db := testdb.OpenAt(t, url, postgres.Options{})
		proxy := failpoint.StartCutter(t, url)
		var handled diary
		dying := unpolled(testdb.OpenAt(t, proxy.URL(), postgres.Options{}), noting(&handled))
		dying.Drain = 1
		stop := startWithFreeSlots(t, db, dying)
		proxy.Arm(failpoint.After, 1) // the page is committed, and its process does not hear of it
		if err := deliver(t, dying, "m1=x@k", "m2=x@k"); !errors.Is(err, groupcommit.ErrUnknown) {
			t.Fatalf("it says %v", err)
		}
		stop()
		if r := stored(t, db, "m1"); r.Status != "running" || r.Holder != "test" || handled.String() != "" {
			t.Fatalf("the dead process has left %+v, and handled: %s", r, &handled)
		}
		var deaths atomic.Int32
		heir := processor(db, noting(&handled))
		heir.Holder = "heir"
		heir.OnClaim = func(_, n int) { deaths.Add(int32(n)) } //nolint:gosec // few
		start(t, heir)
		mustDeliver(t, heir, "m1=x@k", "m2=x@k") // it was not acknowledged
		silence(t, db)
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		if r := stored(t, db, "m1"); r.Fence != 2 || r.Attempts != 2 || deaths.Load() != 1 {
			t.Errorf("%d deaths; it is %+v", deaths.Load(), r)
		}
		handled.want(t, "m1 m2")
		wantReceived(t, db, map[string]int{"r first": 0, "r m1": 1, "r m2": 1})
	})
}

// A message that the inbox refuses is not passed over: it, and what comes behind
// it, waits. What came before it is received.
func TestReceive_continuesAfterAnError(t *testing.T) {
	testdb.Long(t, "it waits for seconds")
	t.Parallel()
	db := testdb.Open(t)
	// A refusal takes a number, which no rollback returns.
	write(t, db, `create sequence refusals`)
	write(t, db, `alter table inbox add constraint planted check (message_id <> 'poison' or nextval('refusals') = 0)`)
	post(t, db, of("a=1", "b=1", "poison=1", "c=1")...)
	lines, stop := receive(t, db, "r")
	// Individually it is refused several times: what is behind it had its chance to pass.
	await.Row(t, db, `select last_value >= 8 from refusals`)
	wantReceived(t, db, map[string]int{"r a": 0, "r b": 0})
	stop()
	for _, want := range []string{"the messages will be redelivered", "planted", "messages=4 message_id="} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("the log says %q, want %q", lines, want)
		}
	}
	write(t, db, `alter table inbox drop constraint planted`)
	receive(t, db, "r")
	awaitReceived(t, db)
	wantReceived(t, db, map[string]int{"r a": 0, "r b": 0, "r poison": 0, "r c": 0})
}

// TestReceive_besideRunningHandlers receives again and again what is claimed, renewed and
// finished at the same moment: neither side sees an error or waits for ever.
func TestReceive_besideRunningHandlers(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	const messages = 200
	for i := range messages {
		post(t, db, letter(strconv.Itoa(i), "x"))
		post(t, db, letter(strconv.Itoa(i), "x"))
	}
	write(t, db, `update outbox set metadata = metadata || jsonb_build_object('ordering_key', message_id)`)
	lines, stop := receive(t, db, "r")
	start(t, processor(db, answer(nil)))
	awaitReceived(t, db)
	await.Row(t, db, `select count(*) = 200 and bool_and(status = 'done' and attempts = 1 and duplicates = 1) from inbox`)
	stop()
	lines.want(t, "")
}
