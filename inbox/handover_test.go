package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/cutproxy"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/outbox"
)

type takePage = func(page []*message.Message) error

// hand receives pages for the processors of a handover until the test ends. Where
// around is given, it stands between the page and its reception, and where ended is
// given, it is told in the handover's place.
func hand(t *testing.T, db *postgres.DB, h *inbox.Handover, around func(takePage) takePage, ended func(), receivers ...string) {
	t.Helper()
	take := h.Receive(func(m *message.Message) inbox.Envelope {
		return inbox.Envelope{
			Receivers: receivers,
			Type:      m.Metadata.Get(outbox.MetadataType), OrderingKey: m.Metadata.Get(outbox.MetadataOrderingKey),
		}
	}, nil)
	if around != nil {
		take = around(take)
	}
	if ended == nil {
		ended = h.Ended
	}
	conns := stdlib.OpenDBFromPool(db.Pool())
	log := slog.New(slog.DiscardHandler)
	subscriber := outbox.NewSubscriberTelling(conns, "inbox", log, ended)
	pages, err := subscriber.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		handle := outbox.ByPage(log, take)
		for m := range pages {
			if err := handle(m); err != nil {
				t.Errorf("message %s: %v", m.UUID, err)
			}
			m.Ack()
		}
	}()
	t.Cleanup(func() {
		if err := subscriber.Close(); err != nil {
			t.Error(err)
		}
		await.Receive(t, "the receiver's end", stopped)
		if err := conns.Close(); err != nil {
			t.Error(err)
		}
		h.Ended()
	})
}

// unpolled makes a processor that claims once, and then not before an hour has
// passed: whatever it handles afterwards, it has taken on receipt.
func unpolled(db *postgres.DB, handle inbox.Handler) *inbox.Processor {
	p := processor(db, handle)
	p.Poll = time.Hour
	return p
}

// startOffering starts it and waits for that claim, which finds a message.
func startOffering(t *testing.T, db *postgres.DB, p *inbox.Processor) (stop func()) {
	t.Helper()
	put(t, db, "first", "first")
	stop = start(t, p)
	await.Row(t, db, `select status = 'done' from inbox where message_id = 'first'`)
	return stop
}

// notes a diary of what is handled, but for the message of startOffering.
func noting(d *diary) inbox.Handler {
	return func(_ context.Context, m inbox.Delivery) (inbox.Result, error) {
		if m.ID != "first" {
			d.note("%s", m.ID)
		}
		return inbox.Complete, nil
	}
}

func TestHandover(t *testing.T) {
	pgtest.Long(t, "it waits for seconds")
	t.Parallel()

	t.Run("a message is handled as it is received, without a claim", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		p := unpolled(pgtest.As(t, db, postgres.RoleWorker), noting(&diary{}))
		var claims, messages atomic.Int32
		p.Observer.Claimed = func(n, _ int) { claims.Add(1); messages.Add(int32(n)) } //nolint:gosec // few
		hand(t, pgtest.As(t, db, postgres.RoleWorker), inbox.NewHandover(p), nil, nil, "r")
		startOffering(t, db, p)
		page(t, db, of("a=1@k", "b=2@l", "c=@m")...)
		await.Row(t, db, `select count(*) = 4 and bool_and(status = 'done' and done_fence = 1 and attempts = 1 and holder = 'test') from inbox`)
		if messages.Load() != 4 || claims.Load() > 4 {
			t.Errorf("%d messages are counted as claimed, %d times", messages.Load(), claims.Load())
		}
	})

	t.Run("as a claim would hand it over", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		seen := map[string]chan inbox.Delivery{"r": make(chan inbox.Delivery, 10), "s": make(chan inbox.Delivery, 10)}
		note := func(receiver string) inbox.Handler {
			return func(_ context.Context, d inbox.Delivery) (inbox.Result, error) {
				if d.ID != "first" {
					seen[receiver] <- d
				}
				return inbox.Complete, nil
			}
		}
		p, claiming := unpolled(db, note("r")), processor(db, note("s"))
		claiming.Receiver = "s"
		start(t, claiming)
		hand(t, db, inbox.NewHandover(p), nil, nil, "r", "s")
		startOffering(t, db, p)
		messages := append(of("a=\x00\xff@naïve 🔑", "b=@"), outbox.Message{
			ID: "c", Type: "t", Payload: []byte("p"), OrderingKey: "l", Metadata: map[string]string{"correlation_id": "<\"\u2028\\>"},
		})
		for _, m := range messages {
			page(t, db, m)
			taken, claimed := await.Receive(t, "what is taken", seen["r"]), await.Receive(t, "what is claimed", seen["s"])
			if diff := cmp.Diff(claimed, taken, cmpopts.IgnoreUnexported(inbox.Delivery{})); diff != "" {
				t.Errorf("message %s (-claimed +taken on receipt):\n%s", m.ID, diff)
			}
		}
	})

	t.Run("nothing of a page that was rolled back is handled, and its places are free again", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		var calls atomic.Int32
		p := processor(db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
			calls.Add(1)
			return inbox.Complete, nil
		})
		p.Concurrency = 2
		var lost atomic.Int32
		p.Observer.Ended = func(e inbox.End) {
			if e != inbox.EndDone {
				lost.Add(1)
			}
		}
		tries := 0
		hand(t, db, inbox.NewHandover(p), func(take takePage) takePage {
			return func(page []*message.Message) error {
				if tries++; tries <= 4 {
					return errors.Join(take(page), errors.New("planted"))
				}
				return take(page)
			}
		}, nil, "r")
		stop := startOffering(t, db, p)
		page(t, db, of("a=1@k")...)
		await.Row(t, db, `select count(*) = 2 and bool_and(status = 'done' and attempts = 1) from inbox`)
		stop()
		if tries < 5 || calls.Load() != 2 || lost.Load() != 0 {
			t.Errorf("%d pages; 2 messages were handled %d times, %d of them not to their end", tries, calls.Load(), lost.Load())
		}
	})

	for name, side := range map[string]cutproxy.Side{"not committed": cutproxy.Before, "committed": cutproxy.After} {
		t.Run("of a page whose commit was lost, and "+name+", each message is handled once", func(t *testing.T) {
			t.Parallel()
			url := pgtest.URL(t)
			db := open(t, url, postgres.Options{})
			proxy := cutproxy.Start(t, url)
			var handled diary
			p := processor(db, noting(&handled))
			armed := false
			hand(t, open(t, proxy.URL(), postgres.Options{}), inbox.NewHandover(p), func(take takePage) takePage {
				return func(page []*message.Message) error {
					err := take(page)
					if !armed && err == nil {
						armed = true
						proxy.Arm(side, 1) // the offset moves, or the commit
					}
					return err
				}
			}, nil, "r")
			stop := startOffering(t, db, p)
			page(t, db, of("a=1@k")...)
			await.Row(t, db, `select count(*) = 2 and bool_and(status = 'done') from inbox`)
			stop()
			if got := handled.String(); got != "a" || proxy.Cuts() != 1 {
				t.Errorf("handled: %s, after %d cuts", got, proxy.Cuts())
			}
		})
	}

	for name, of := range map[string]struct {
		older  string
		parked inbox.Parked
		taken  bool
	}{
		"that is open":                        {older: `status = 'pending', attempts = 1, due_at = clock_timestamp() + interval '1 hour'`},
		"that another process works on":       {older: `status = 'running', fence = 1, due_at = clock_timestamp() + interval '1 hour'`},
		"that is parked":                      {older: `status = 'dead'`},
		"that is parked and lets pass":        {older: `status = 'dead'`, parked: inbox.Pass, taken: true},
		"that is done":                        {older: `status = 'done', done_fence = 0`, taken: true},
		"that is open, of another receiver":   {older: `receiver = 's'`, taken: true},
		"that is parked, of another receiver": {older: `receiver = 's', status = 'dead'`, taken: true},
	} {
		t.Run("behind a message of its key "+name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Reused(t)
			var handled diary
			p := unpolled(db, noting(&handled))
			p.Policy.Parked = of.parked
			hand(t, db, inbox.NewHandover(p), nil, nil, "r")
			startOffering(t, db, p)
			put(t, db, "older", "k")
			write(t, db, `update inbox set `+of.older+` where message_id = 'older'`)
			page(t, db, letter("younger", "x"))
			awaitReceived(t, db)
			if of.taken {
				await.Row(t, db, `select status = 'done' from inbox where message_id = 'younger'`)
				return
			}
			if r := stored(t, db, "younger"); r.Status != "pending" || r.Fence != 0 || r.Attempts != 0 || r.Holder != "" || r.DueIn > 0 {
				t.Errorf("it is %+v", r)
			}
			if got := handled.String(); got != "" {
				t.Errorf("%s was handled", got)
			}
		})
	}

	t.Run("a message of its key that is claimed at the same moment refuses the page, which is read again without offers", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		var handled, refused diary
		p := processor(db, noting(&handled))
		tx := begin(t, db)
		hand(t, db, inbox.NewHandover(p), func(take takePage) takePage {
			return func(page []*message.Message) error {
				if len(page) == 3 { // it waits for the lock when it has looked
					run(t, tx, `select from inbox where message_id = 'known' for no key update`)
				}
				err := take(page)
				if err != nil {
					refused.note("%s", postgres.Constraint(err))
				}
				return err
			}
		}, nil, "r")
		stop := startOffering(t, db, p)
		page(t, db, of("known=x@l")...)
		await.Row(t, db, `select count(*) = 2 and bool_and(status = 'done') from inbox`)
		page(t, db, of("known=x@l", "m1=x@k", "m2=x@m")...)
		await.Blocked(t, db, 1)
		// The page has looked already.
		write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, due_at)
			values ('r', 'rival', 'k', 't', '', '{}', '', 'running', 1, clock_timestamp() + interval '1 hour')`)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		awaitReceived(t, db)
		await.Row(t, db, `select status = 'done' from inbox where message_id = 'm2'`)
		if r := stored(t, db, "m1"); r.Status != "pending" || r.Fence != 0 {
			t.Errorf("it is %+v", r)
		}
		write(t, db, `update inbox set status = 'done', done_fence = fence where message_id = 'rival'`)
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		stop()
		if got := handled.String(); got != "known m2 m1" || refused.String() != "inbox_one_running_per_key" {
			t.Errorf("handled: %s; refused by: %s", got, &refused)
		}
	})

	t.Run("what a page brings behind its own messages, or beyond the places, comes by claims and in order", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		var handled diary
		finish := make(chan struct{})
		p := processor(db, func(_ context.Context, d inbox.Delivery) (inbox.Result, error) {
			if d.OrderingKey == "k" {
				handled.note("%s", d.ID)
				<-finish
			}
			return inbox.Complete, nil
		})
		p.Concurrency = 3
		hand(t, db, inbox.NewHandover(p), nil, nil, "r")
		startOffering(t, db, p)
		page(t, db, of("a=1@k", "b=1@k", "c=1@l", "d=1@m", "e=1@n", "f=1@o", "g=1@k")...)
		await.Row(t, db, `select count(*) filter (where status = 'done') = 5 and count(*) filter (where status = 'running') = 1 from inbox`)
		close(finish)
		await.Row(t, db, `select bool_and(status = 'done' and attempts = 1) from inbox`)
		if got := handled.String(); got != "a b g" {
			t.Errorf("messages of one key came as %s", got)
		}
	})

	t.Run("who comes behind what was taken on receipt does not wait for the third poll", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		p := processor(db, noting(&diary{}))
		p.Poll = poll
		hand(t, db, inbox.NewHandover(p), nil, nil, "r")
		startOffering(t, db, p)
		soonOnce(t, 8*poll, func(try int) { // else it is twelve
			texts := make([]string, 5)
			for i := range texts {
				texts[i] = fmt.Sprintf("m%d-%d=1@k", try, i)
			}
			page(t, db, of(texts...)...)
			awaitReceived(t, db)
			await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		})
	})

	t.Run("older messages have the places first", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		const older = 60
		for i := range older {
			put(t, db, fmt.Sprint("older", i), fmt.Sprint("older", i))
		}
		var begun diary
		p := processor(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			begun.note("%s", strings.TrimRight(d.ID, "0123456789"))
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond): // pages come meanwhile
			}
			return inbox.Complete, nil
		})
		p.Concurrency = 4
		hand(t, db, inbox.NewHandover(p), nil, nil, "r")
		for i := range 20 {
			page(t, db, of(fmt.Sprintf("m%d=1@%d", i, i))...)
		}
		start(t, p)
		await.Row(t, db, `select count(*) = 80 and bool_and(status = 'done') from inbox`)
		before, _, _ := strings.Cut(begun.String(), " m")
		if n := len(strings.Fields(before)); n < older-p.Concurrency {
			t.Errorf("%d of %d older messages were begun before a younger one", n, older)
		}
	})

	t.Run("a processor that met no store offers nothing", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		away := open(t, pgtest.URL(t), postgres.Options{})
		away.Close()
		p := processor(away, noting(&diary{}))
		hand(t, db, inbox.NewHandover(p), nil, nil, "r")
		start(t, p)
		page(t, db, letter("m1", "x"))
		awaitReceived(t, db)
		if r := stored(t, db, "m1"); r.Status != "pending" || r.Fence != 0 {
			t.Errorf("it is %+v", r)
		}
	})

	t.Run("the lease of what was taken is kept", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		hung := newHung(db, "holder")
		p := unpolled(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			if d.ID == "first" {
				return inbox.Complete, nil
			}
			return hung.handle(ctx, d)
		})
		p.Policy.Lease = renewedLease
		hand(t, db, inbox.NewHandover(p), nil, nil, "r")
		startOffering(t, db, p)
		page(t, db, letter("m1", "x"))
		await.Receive(t, "the message", hung.begun)
		rival := processor(db, noting(&diary{}))
		rival.Holder = "rival"
		start(t, rival)
		awaitRenewal(t, db, "m1")
		if r := stored(t, db, "m1"); r.Status != "running" || r.Fence != 1 {
			t.Errorf("it is %+v", r)
		}
		close(hung.finish)
		await.Row(t, db, `select bool_and(status = 'done' and done_fence = 1) from inbox`)
	})

	t.Run("what was taken while the program was told to stop is given back", func(t *testing.T) {
		t.Parallel()
		for range 50 { // it may be told a moment before it knows that it stops
			if stopsWhileAPageIsUnderWay(t) == inbox.EndReleased {
				return
			}
		}
		t.Error("it never was")
	})

	t.Run("what a process took that died is taken over", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		var handled diary
		dying := unpolled(db, noting(&handled))
		dying.Drain = 0
		hand(t, db, inbox.NewHandover(dying), nil, func() {}, "r") // it dies before it is told
		stop := startOffering(t, db, dying)
		page(t, db, of("m1=x@k", "m2=x@k")...)
		awaitReceived(t, db)
		stop()
		if r := stored(t, db, "m1"); r.Status != "running" || r.Holder != "test" {
			t.Errorf("the dead process has left %+v", r)
		}
		var deaths atomic.Int32
		heir := processor(db, noting(&handled))
		heir.Holder = "heir"
		heir.Observer.Claimed = func(_, n int) { deaths.Add(int32(n)) } //nolint:gosec // few
		start(t, heir)
		silence(t, db)
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		if r := stored(t, db, "m1"); r.Fence != 2 || r.Attempts != 2 || deaths.Load() != 1 {
			t.Errorf("%d deaths; it is %+v", deaths.Load(), r)
		}
		if got := handled.String(); got != "m1 m2" {
			t.Errorf("handled: %s", got)
		}
	})
}

// stopsWhileAPageIsUnderWay stops a processor whose message is received and not yet
// told of, and returns how that ended.
func stopsWhileAPageIsUnderWay(t *testing.T) inbox.End {
	t.Helper()
	db := pgtest.Reused(t)
	var handled diary
	ends := make(chan inbox.End, 10)
	p := unpolled(db, noting(&handled))
	p.Observer.Ended = func(e inbox.End) { ends <- e }
	h := inbox.NewHandover(p)
	hand(t, db, h, nil, func() {}, "r")
	stop := startOffering(t, db, p)
	await.Receive(t, "the end of the first", ends)
	page(t, db, letter("m1", "x"))
	awaitReceived(t, db)
	if r := stored(t, db, "m1"); r.Status != "running" || r.Fence != 1 || handled.String() != "" {
		t.Errorf("before anybody tells of it, it is %+v, and handled: %s", r, &handled)
	}
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	for range 20 {
		await.Row(t, db, `select true`)
	}
	h.Ended()
	await.Receive(t, "the stop", stopped)
	end := await.Receive(t, "the end of it", ends)
	r := stored(t, db, "m1")
	switch {
	case end == inbox.EndReleased && r.Status == "pending" && r.Attempts == 0 && r.DueIn <= 0 && handled.String() == "":
	case end == inbox.EndDone && r.Status == "done" && handled.String() == "m1":
	default:
		t.Errorf("%s: it is %+v, and handled: %s", end, r, &handled)
	}
	return end
}
