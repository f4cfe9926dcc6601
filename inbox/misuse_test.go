package inbox_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

// pipe is a subscriber over a channel.
type pipe chan *message.Message

func (p pipe) Subscribe(context.Context, string) (<-chan *message.Message, error) { return p, nil }
func (pipe) Close() error                                                         { return nil }

// A message that is acknowledged and not stored is lost.
func TestConsume_acknowledgesNothingThatSplitCannotRead(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() []*message.Message{
		"a panic":               func() []*message.Message { panic("odd") },
		"a message that is nil": func() []*message.Message { return []*message.Message{nil} },
	} {
		t.Run(name, func(t *testing.T) {
			db, from, failed := fresh(t), make(pipe, 2), false
			from <- message.NewMessage("m1", []byte("first"))
			first := <-from
			from <- first
			stop := consume(t, storing(db, "r"), inbox.Source{Subscriber: from, Split: func(m *message.Message) ([]*message.Message, error) {
				if !failed {
					failed = true
					return fail(), nil
				}
				return []*message.Message{m}, nil
			}})
			await.Receive(t, "a refusal", first.Nacked())
			again := first.Copy()
			from <- again
			await.Receive(t, "an acknowledgment", again.Acked())
			wantReceived(t, db, map[string]int{"r m1": 0})
			testdb.Must(t, stop())
		})
	}
}

// A nil message has nothing to store, and nothing to acknowledge.
func TestConsume_passesOverANilMessage(t *testing.T) {
	t.Parallel()
	db, from, last := testdb.Reused(t), make(pipe, 4), message.NewMessage("m1", nil)
	for _, m := range []*message.Message{nil, nil, last, nil} {
		from <- m
	}
	stop := consume(t, storing(db, "r"), inbox.Source{Subscriber: from})
	await.Receive(t, "an acknowledgment", last.Acked())
	await.True(t, "all are read", func() bool { return len(from) == 0 })
	testdb.Must(t, stop())
	wantReceived(t, db, map[string]int{"r m1": 0})
}

func TestProcessor_runsOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	put(t, db, "m1", "k")
	p := processor(db, answer(nil))
	stop := start(t, p)
	await.Row(t, db, `select status = 'done' from inbox`)
	for range 2 {
		if err := p.Run(t.Context()); err == nil || err.Error() != "inbox: a processor runs once" {
			t.Errorf("a second Run says %v", err)
		}
		stop()
	}
}

// A handler that ends its goroutine looks like a holder that died, and not like one that
// works for ever.
func TestProcessor_outlivesAHandlerThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	put(t, db, "m1", "k")
	var attempts atomic.Int32
	p := processor(db, func(context.Context, *inbox.Delivery) error {
		if attempts.Add(1) == 1 {
			runtime.Goexit()
		}
		return nil
	})
	p.Policy.Lease, p.Policy.BackoffBase, p.Policy.BackoffCap = renewedLease, 1, 1
	start(t, p)
	await.Row(t, db, `select status = 'done' and attempts = 2 and deaths = 1 from inbox`)
}

// A handler may change what it is given: its slot is counted as that of the message's own
// partition.
func TestProcessor_countsSlotsWhateverAHandlerChanges(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash)
		select 'r', n, n, 'p', 't', '', '{}', '' from generate_series(1, 100) n`)
	start(t, processor(db, func(_ context.Context, d *inbox.Delivery) error {
		d.Message = inbox.Message{Partition: "another"}
		return nil
	}))
	await.Row(t, db, `select count(*) = 100 and bool_and(status = 'done' and attempts = 1) from inbox`)
}

func TestProcessor_storesAnErrorWithBytesThatPostgreSQLRefuses(t *testing.T) {
	t.Parallel()
	errs := map[string]error{
		"wait":    &inbox.WaitError{AtLeast: time.Hour, Err: errors.New("malformed header: \x00\xff")},
		"dead":    &inbox.DeadLetterError{Err: errors.New("\xff\x00")},
		"failure": errors.New("\x00\xff"),
	}
	db := testdb.Reused(t)
	for id := range errs {
		put(t, db, id, id)
	}
	p := processor(db, func(_ context.Context, d *inbox.Delivery) error {
		return errs[d.ID]
	})
	p.Policy.BackoffBase, p.Policy.BackoffCap = time.Millisecond, 10*time.Millisecond
	start(t, p)
	await.Row(t, db, `
select bool_and(case message_id
                  when 'wait'    then status = 'pending' and attempts = 0 and waits = 1 and last_error like 'waiting: malformed header%'
                  when 'dead'    then status = 'dead' and attempts = 1 and last_error is not null
                  when 'failure' then status = 'dead' and attempts = 3 and last_error is not null
                end)
  from inbox`)
}

func TestProcessor_unreadableMetadataOfOneMessageDelaysNoOther(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for id, metadata := range map[string]string{"strange": `{"a": 1}`, "a": `{"type": "t"}`, "b": `{"type": "t"}`} {
		put(t, db, id, id)
		write(t, db, `update inbox set metadata = $2 where message_id = $1`, id, metadata)
	}
	start(t, processor(db, answer(nil)))
	await.Row(t, db, `select bool_and(status = 'done' and attempts = 1) from inbox`)
}
