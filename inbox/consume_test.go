package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// broker delivers its log to a subscriber, each message until it is acknowledged.
type broker struct {
	log []*message.Message
	one bool // the next message is delivered after the end of the one before, as Kafka does

	mu    sync.Mutex
	acked []string
	nacks int
	out   chan *message.Message
}

func (b *broker) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	b.out = make(chan *message.Message)
	var partitions sync.WaitGroup
	deliver := func() {
		for _, m := range b.log {
			if b.one {
				b.deliver(ctx, m)
			} else {
				partitions.Go(func() { b.deliver(ctx, m) })
			}
		}
	}
	partitions.Go(deliver)
	go func() { partitions.Wait(); <-ctx.Done(); close(b.out) }()
	return b.out, nil
}

func (b *broker) deliver(ctx context.Context, m *message.Message) {
	for ctx.Err() == nil {
		c := m.Copy()
		select {
		case b.out <- c:
		case <-ctx.Done():
			return
		}
		select {
		case <-c.Acked():
			b.mu.Lock()
			b.acked = append(b.acked, m.UUID)
			b.mu.Unlock()
			return
		case <-c.Nacked():
			b.mu.Lock()
			b.nacks++
			b.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

func (b *broker) Close() error { return nil }

func (b *broker) seen() (acked, nacks int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.acked), b.nacks
}

func (b *broker) awaitAcks(t *testing.T, n int) {
	t.Helper()
	await.True(t, fmt.Sprintf("%d messages are acknowledged", n), func() bool { acked, _ := b.seen(); return acked == n })
}

// logOf is the log of a broker: messages of these ids, whose payloads are the ids.
func logOf(ids ...string) []*message.Message {
	all := make([]*message.Message, len(ids))
	for i, id := range ids {
		all[i] = message.NewMessage(id, []byte(id))
	}
	return all
}

// consume has p consume a subscriber until stop, which returns what Consume returned.
func consume(t *testing.T, p *inbox.Processor, from inbox.Source) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- p.Consume(ctx, from) }()
	return func() error { cancel(); return await.Receive(t, "the end of Consume", ended) }
}

// affecting is a handler that ends its message in a transaction with an effect.
func affecting(db *postgres.DB) inbox.Handler {
	return func(ctx context.Context, d *inbox.Delivery) error {
		return pgx.BeginFunc(ctx, db.Pool(), func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into merchants (merchant_id) values ($1)`, d.ID); err != nil {
				return err
			}
			return d.Done(ctx, tx)
		})
	}
}

// What cannot be read or indexed blocks nothing. Nor does what is no text.
func TestConsume_unreadableMessagesBlockNothing(t *testing.T) {
	t.Parallel()
	const dead, done = "dead", "done"
	long := random(6000)
	for name, test := range map[string]struct {
		id           string
		read         func(*message.Message) (inbox.Message, error)
		status, kept string // its status and the beginning of its id
		reason       string
	}{
		"no id":                  {"", nil, dead, "unreadable:", "the message has no id"},
		"Read refuses it":        {"m", func(*message.Message) (inbox.Message, error) { return inbox.Message{}, idempotency.ErrMissing }, dead, "unreadable:", idempotency.ErrMissing.Error()},
		"Read panics":            {"m", func(*message.Message) (inbox.Message, error) { panic("odd") }, dead, "unreadable:", "panic: odd"},
		"an id that is too long": {long, nil, done, "sha256:", ""},
		"an id that is no text":  {"m\x00\xff", nil, done, "sha256:", ""},
	} {
		t.Run(name, func(t *testing.T) {
			db, b, handled := fresh(t), &broker{log: logOf(test.id, test.id), one: true}, &diary{}
			for _, m := range b.log {
				m.Payload, m.Metadata = []byte("\x00"), message.Metadata{"a\x00": "b\xff"}
			}
			p := processor(db, noting(handled))
			start(t, p)
			read := test.read
			if read == nil {
				read = func(*message.Message) (inbox.Message, error) {
					return inbox.Message{Type: "a\xffb\x00", OrderingKey: "\x00"}, nil
				}
			}
			consume(t, p, inbox.Source{Subscriber: b, Read: read})
			b.awaitAcks(t, 2)
			await.Row(t, db, `select status = $1 and starts_with(message_id, $2) and duplicates = 1 and payload = '\x00'
				and metadata ->> 'a' = U&'b\FFFD' from inbox`, test.status, test.kept)
			if r := all(t, db, pgx.RowTo[string], `select coalesce(last_error, '') from inbox`)[0]; !strings.HasPrefix(r, test.reason) {
				t.Errorf("the reason is %q", r)
			}
			if test.status == dead {
				handled.want(t, "")
			}
		})
	}
}

func TestConsume_keepsWhatItsSourceSays(t *testing.T) {
	t.Parallel()
	db, large := testdb.Reused(t), bytes.Repeat([]byte("x"), 10<<20)
	spellings := []string{`{"order_id":"o-1","amount":100}`, `{ "amount": 1e2, "order_id": "o-1" }`}
	b := &broker{log: logOf("skipped", "large", "sent-1", "sent-2")}
	b.log[1].Payload, b.log[2].Payload, b.log[3].Payload = large, []byte(spellings[0]), []byte(spellings[1])
	for _, m := range b.log[2:] {
		m.Metadata = message.Metadata{"type": "order", "ordering_key": "o"} // as outbox.Forward sends it
	}
	got := make(chan []byte, 1)
	p := processor(db, func(_ context.Context, d *inbox.Delivery) error {
		if d.ID == "large" {
			got <- d.Payload
		}
		return nil
	})
	start(t, p)
	consume(t, p, inbox.Source{Subscriber: b, Read: func(m *message.Message) (inbox.Message, error) {
		switch m.UUID {
		case "skipped":
			return inbox.Message{}, inbox.ErrSkip
		case "large":
			return inbox.Message{OrderingKey: "k", Type: "t"}, nil
		}
		id, canonical, err := idempotency.Content("shop", m.Payload)
		return inbox.Message{ID: id, Payload: canonical}, err
	}})
	b.awaitAcks(t, 4)
	if !bytes.Equal(await.Receive(t, "the large message", got), large) {
		t.Error("it is another")
	}
	await.Row(t, db, `select count(*) = 2 and bool_and(status = 'done') and sum(duplicates) = 1 and max(ordering_key) filter (where type = 't') = 'k' and max(ordering_key) filter (where type = 'order') = 'o' from inbox`)
	wantAside(t, db)
}

// A commit that has begun is not interrupted, and what it stores is acknowledged.
func TestConsume_completesACommitInFlight(t *testing.T) {
	t.Parallel()
	db, b := testdb.Reused(t), &broker{log: logOf("m1")}
	lock := testdb.Begin(t, db.Pool(), `lock table inbox in exclusive mode`)
	stop := consume(t, storing(db, "r"), inbox.Source{Subscriber: b})
	await.Blocked(t, db, 1)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if acked, _ := b.seen(); acked > 0 {
		t.Error("it is acknowledged before it is stored")
	}
	testdb.Exec(t, lock, `rollback`)
	testdb.Must(t, await.Receive(t, "the end", stopped))
	await.Row(t, db, `select count(*) = 1 and bool_and(status = 'pending') from inbox`)
	ended := make(chan *message.Message)
	close(ended)
	if err := storing(db, "r").Consume(t.Context(), inbox.Source{Subscriber: pipe(ended), Topic: "orders"}); !errors.Is(err, inbox.ErrClosed) {
		t.Errorf("after the end of a subscription: %v", err)
	}
	if err := storing(db, "r").Consume(t.Context(), inbox.Source{}); err == nil || err.Error() != "inbox: the source has no Subscriber" {
		t.Errorf("without a subscriber: %v", err)
	}
	if err := storing(db, "r").Consume(t.Context(), inbox.Source{Subscriber: unreachable{}, Topic: "orders"}); err == nil || err.Error() != "subscribe to orders: no route" {
		t.Errorf("without a broker: %v", err)
	}
}

// What a source requires fails in the transaction that stores the page.
func TestConsume_refusesAPageWhoseRequirementFails(t *testing.T) {
	t.Parallel()
	db, b := testdb.Reused(t), &broker{log: logOf("m1")}
	deliveries := 0
	consume(t, storing(db, "r"), inbox.Source{Subscriber: b, Require: func(batch *pgx.Batch, m *message.Message) {
		batch.Queue(`select 1 / (count(*) + $1::int) from inbox where message_id = $2`, deliveries, m.UUID)
		deliveries++
	}})
	b.awaitAcks(t, 1)
	if _, nacks := b.seen(); nacks != 1 {
		t.Errorf("refused %d times", nacks)
	}
	await.Row(t, db, `select count(*) = 1 and sum(duplicates) = 0 from inbox`)
}

type unreachable struct{ message.Subscriber }

func (unreachable) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, errors.New("no route")
}

// The handler's own transaction decides, whatever the handler hears of its commit.
func TestDone_isDurableWithTheHandlersTransaction(t *testing.T) {
	t.Parallel()
	for name, side := range map[string]failpoint.Side{"the commit did not come": failpoint.Before, "its answer is lost": failpoint.After} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			db, proxy := testdb.OpenAt(t, url, postgres.Options{}), failpoint.StartCutter(t, url)
			its := testdb.OpenAt(t, proxy.URL(), postgres.Options{})
			put(t, db, "m1", "k")
			p := processor(db, func(ctx context.Context, d *inbox.Delivery) error {
				return pgx.BeginFunc(ctx, its.Pool(), func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `insert into merchants (merchant_id) values ('effect') on conflict do nothing`); err != nil {
						return err
					}
					err := d.Done(ctx, tx)
					if d.Waits == 0 {
						proxy.Arm(side, -1)
					}
					return err
				})
			})
			p.Policy.BackoffBase, p.Policy.BackoffCap = 1, 1
			start(t, p)
			await.True(t, "a cut", func() bool { return proxy.Cuts() == 1 })
			await.Row(t, db, `select status = 'done' and deaths = 0 from inbox`)
			wantEffects(t, db, "effect")
		})
	}

	t.Run("a transaction that is rolled back has ended nothing", func(t *testing.T) {
		db, left := fresh(t, "m1@k"), make(chan struct{})
		p := processor(db, func(ctx context.Context, d *inbox.Delivery) error {
			if d.Attempt > 1 {
				return affecting(db)(ctx, d)
			}
			tx, err := db.Pool().Begin(ctx)
			if err != nil {
				return err
			}
			defer close(left)
			return errors.Join(d.Done(ctx, tx), tx.Rollback(ctx))
		})
		start(t, p)
		await.Receive(t, "the end of the first attempt", left)
		silence(t, db)
		await.Row(t, db, `select status = 'done' and attempts = 2 from inbox`)
		wantEffects(t, db, "m1")
	})

	t.Run("a holder that was taken over is refused", func(t *testing.T) {
		db, lost := fresh(t, "m1@k"), make(chan error, 1)
		start(t, processor(db, func(ctx context.Context, d *inbox.Delivery) error {
			testdb.Exec(t, db.Pool(), `update inbox set fence = fence + 1`)
			err := affecting(db)(ctx, d)
			lost <- err
			return err
		}))
		if err := await.Receive(t, "the end", lost); !inbox.IsLeaseLost(err) {
			t.Errorf("it ends with %v", err)
		}
		wantEffects(t, db)
	})
}

func TestProcessor_refusesInvalidFields(t *testing.T) {
	t.Parallel()
	db, handle := testdb.Reused(t), answer(nil)
	for want, p := range map[string]*inbox.Processor{
		"inbox: the processor has no DB":                                         {Receiver: "r", Handle: handle},
		"inbox: the processor has no Handle":                                     {DB: db, Receiver: "r"},
		`inbox: the receiver "" is empty`:                                        {DB: db, Handle: handle},
		`inbox: the receiver "rr`:                                                {DB: db, Receiver: strings.Repeat("r", inbox.MaxLength+1), Handle: handle},
		`inbox: the receiver "\x00" is empty, no text, or longer than 255 bytes`: {DB: db, Receiver: "\x00", Handle: handle},
		"inbox: a setting of the processor is negative":                          {DB: db, Receiver: "r", Handle: handle, MinClaimInterval: -1},
	} {
		if err := p.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if p.Handle == nil {
			continue // it may store
		}
		_, received := p.Receive(t.Context(), inbox.Message{ID: "m"})
		if consumed := p.Consume(t.Context(), inbox.Source{}); received == nil || !errors.Is(consumed, received) {
			t.Errorf("Receive: %v, Consume: %v, want %s", received, consumed, want)
		}
	}
}
