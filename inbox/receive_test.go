package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
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
		testdb.Must(t, outbox.Append(b, m))
	}
	testdb.Must(t, db.Commit(t.Context(), b))
}

func letter(id, payload string) outbox.Message {
	return outbox.Message{ID: id, Type: "letter", OrderingKey: "k", Payload: []byte(payload)}
}

// storing is a processor that does not run: it stores what it receives.
func storing(db *postgres.DB, receiver string) *inbox.Processor {
	return &inbox.Processor{DB: db, Receiver: receiver, Log: slog.New(slog.DiscardHandler)}
}

// receive takes messages from the outbox into the inbox of the receiver r until stop, or
// until the test ends, and returns what it logs.
func receive(t *testing.T, db *postgres.DB) (lines *diary, stop func()) {
	t.Helper()
	lines, stop = receiveWith(t, db, storing(db, "r"), nil, nil)
	await.Row(t, db, `select exists (select from outbox_offsets where consumer_group = 'r')`)
	return lines, stop
}

// receiveFor takes messages from the outbox for a processor, as many as it has room
// for.
func receiveFor(t *testing.T, db *postgres.DB, p *inbox.Processor) {
	t.Helper()
	receiveWith(t, db, p, nil, p.Capacity)
}

func receiveWith(t *testing.T, db *postgres.DB, p *inbox.Processor, read func(*message.Message) (inbox.Message, error), room func(context.Context) int) (lines *diary, stop func()) {
	t.Helper()
	lines = &diary{}
	p.Log = slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
	subscriber := outbox.NewSubscriber(db.Pool(), p.Receiver, outbox.Options{Capacity: room})
	source := inbox.Source{Subscriber: subscriber, Topic: topic, Split: outbox.Messages, Require: outbox.SameTimeline, Read: read}
	stopConsuming := consume(t, p, source)
	stop = sync.OnceFunc(func() {
		testdb.Must(t, stopConsuming())
		testdb.Must(t, subscriber.Close())
	})
	t.Cleanup(stop)
	return lines, stop
}

// wantReceived wants these messages in the inbox, by receiver and id, with their duplicates.
func wantReceived(t *testing.T, db *postgres.DB, want map[string]int) {
	t.Helper()
	got := testdb.One[map[string]int](t, db, `select coalesce(jsonb_object_agg(receiver || ' ' || message_id, duplicates), '{}') from inbox`)
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
		receive(t, db)
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
		receive(t, db)
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
	lines, stop := receive(t, db)
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
	receive(t, db)
	awaitReceived(t, db)
	wantReceived(t, db, map[string]int{"r a": 0, "r b": 0, "r poison": 0, "r c": 0})
}
