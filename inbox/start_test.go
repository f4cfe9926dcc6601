package inbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// delivered makes messages of "id=payload@key", as a transport delivers them.
func delivered(texts ...string) []inbox.Message {
	messages := make([]inbox.Message, len(texts))
	for i, m := range of(texts...) {
		messages[i] = inbox.Message{
			ID: m.ID, Type: m.Type, OrderingKey: m.OrderingKey, Payload: m.Payload,
			Metadata: map[string]string{outbox.MetadataType: m.Type, outbox.MetadataOrderingKey: m.OrderingKey},
		}
	}
	return messages
}

// deliver has p receive a page.
func deliver(t *testing.T, p *inbox.Processor, texts ...string) error {
	t.Helper()
	_, err := p.Receive(t.Context(), delivered(texts...)...)
	return err
}

func mustDeliver(t *testing.T, p *inbox.Processor, texts ...string) {
	t.Helper()
	testdb.Must(t, deliver(t, p, texts...))
}

// unpolled makes a processor that claims once, and then not before an hour has
// passed: what it handles afterwards, Receive has started.
func unpolled(db *postgres.DB, handle inbox.Handler) *inbox.Processor {
	p := processor(db, handle)
	p.MinClaimInterval = time.Hour
	return p
}

// startWithFreeSlots starts it, has it claim a message once, and waits until it has room.
func startWithFreeSlots(t *testing.T, db *postgres.DB, p *inbox.Processor) (stop func()) {
	t.Helper()
	return startWithFreeSlotsUntil(t.Context(), t, db, p)
}

// startWithFreeSlotsUntil is startWithFreeSlots, and the processor stops when ctx ends.
func startWithFreeSlotsUntil(ctx context.Context, t *testing.T, db *postgres.DB, p *inbox.Processor) (stop func()) {
	t.Helper()
	put(t, db, "first", "first")
	stop = startUntil(ctx, t, p)
	await.Row(t, db, `select status = 'done' from inbox where message_id = 'first'`)
	await.True(t, "all slots are free", func() bool { return p.Capacity(t.Context()) == p.Concurrency })
	return stop
}

// deliverHeld has p receive a page that has looked at its keys, and waits for a transaction
// until release.
func deliverHeld(t *testing.T, db *postgres.DB, p *inbox.Processor, texts ...string) (release func()) {
	t.Helper()
	tx := testdb.Begin(t, db.Pool(), `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		values ('r', 'held', 'l', 't', '', '{}', '')`)
	ended := make(chan error, 1)
	go func() { ended <- deliver(t, p, append([]string{"held=x@l"}, texts...)...) }()
	await.Blocked(t, db, 1)
	return func() {
		testdb.Exec(t, tx, `rollback`)
		testdb.Must(t, await.Receive(t, "the end of the page", ended))
	}
}

func TestReceive_claimsOnReceipt(t *testing.T) {
	t.Parallel()

	t.Run("stores a message as claimed in its page", func(t *testing.T) {
		db := fresh(t)
		p := unpolled(testdb.As(t, db, postgres.RoleWorker), noting(&diary{}))
		var messages atomic.Int32
		p.OnClaim = func(n, _ int) { messages.Add(int32(n)) } //nolint:gosec // few
		startWithFreeSlots(t, db, p)
		mustDeliver(t, p, "a=1@k", "b=2@l", "c=@m")
		await.Row(t, db, `select count(*) = 4 and bool_and(status = 'done' and done_fence = 1 and attempts = 1 and holder = 'test') from inbox`)
		if messages.Load() != 4 {
			t.Errorf("%d messages are counted as claimed, want 4", messages.Load())
		}
	})

	t.Run("its handler receives what a claim would return", func(t *testing.T) {
		db := fresh(t)
		note := func(seen chan *inbox.Delivery) inbox.Handler {
			return func(_ context.Context, d *inbox.Delivery) error {
				if d.ID != "first" {
					seen <- d
				}
				return nil
			}
		}
		started, claimed := make(chan *inbox.Delivery, 10), make(chan *inbox.Delivery, 10)
		p, claiming := unpolled(db, note(started)), processor(db, note(claimed))
		startWithFreeSlots(t, db, p)
		claiming.Receiver = "s"
		start(t, claiming)
		page := delivered("a=\x00\xff@naïve 🔑", "b=@")
		page[1].Metadata["correlation_id"] = "<\"\u2028\\\x00\xff>"
		for _, m := range page {
			for _, p := range []*inbox.Processor{p, storing(db, "s")} {
				_, err := p.Receive(t.Context(), m)
				testdb.Must(t, err)
			}
			want, got := await.Receive(t, "what is claimed", claimed), await.Receive(t, "what is started", started)
			if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(inbox.Delivery{}), cmpopts.IgnoreFields(inbox.Delivery{}, "ClaimedAt")); diff != "" {
				t.Errorf("message %s (-claimed +started):\n%s", m.ID, diff)
			}
		}
	})

	t.Run("nothing of a page that was rolled back, and its slots are free again", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		write(t, db, `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'planted'; end $$`)
		write(t, db, `create constraint trigger planted after insert on inbox deferrable initially deferred
			for each row when (new.message_id = 'poison') execute function refuse()`)
		var handled diary
		p := unpolled(db, noting(&handled))
		stop := startWithFreeSlots(t, db, p)
		for range 2 * p.Concurrency {
			if err := deliver(t, p, "a=1@k", "poison=1@l"); err == nil {
				t.Fatal("the page is stored")
			}
		}
		mustDeliver(t, p, "b=1@k")
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		stop()
		handled.want(t, "b")
		wantReceived(t, db, map[string]int{"r first": 0, "r b": 0})
	})

	for name, of := range map[string]struct {
		older       string
		deadLetters inbox.DeadLetters
		starts      bool
	}{
		"that is open":                               {older: `status = 'pending', attempts = 1, due_at = clock_timestamp() + interval '1 hour'`},
		"that another process works on":              {older: `status = 'running', fence = 1, due_at = clock_timestamp() + interval '1 hour'`},
		"that is a dead letter":                      {older: `status = 'dead'`},
		"that is a dead letter and lets pass":        {older: `status = 'dead'`, deadLetters: inbox.Pass, starts: true},
		"that is done":                               {older: `status = 'done', done_fence = 0`, starts: true},
		"that is open, of another receiver":          {older: `receiver = 's'`, starts: true},
		"that is a dead letter, of another receiver": {older: `receiver = 's', status = 'dead'`, starts: true},
	} {
		t.Run("behind a message of its key "+name, func(t *testing.T) {
			db := fresh(t)
			var handled diary
			p := unpolled(db, noting(&handled))
			p.Policy.DeadLetters = of.deadLetters
			startWithFreeSlots(t, db, p)
			put(t, db, "older", "k")
			write(t, db, `update inbox set `+of.older+` where message_id = 'older'`)
			mustDeliver(t, p, "younger=x")
			if of.starts {
				await.Row(t, db, `select status = 'done' from inbox where message_id = 'younger'`)
				return
			}
			if r := stored(t, db, "younger"); r.Status != "pending" || r.Fence != 0 || r.Attempts != 0 || r.Holder != "" || r.DueIn > 0 {
				t.Errorf("it is %+v", r)
			}
			handled.want(t, "")
		})
	}

	t.Run("a page without slots when one of its keys starts elsewhere at the same moment", func(t *testing.T) {
		db := fresh(t)
		var handled diary
		p := processor(db, noting(&handled))
		stop := startWithFreeSlots(t, db, p)
		release := deliverHeld(t, db, p, "m1=x@k", "m2=x@m")
		write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, due_at)
			values ('r', 'rival', 'k', 't', '', '{}', '', 'running', 1, clock_timestamp() + interval '1 hour')`)
		release()
		await.Row(t, db, `select count(*) = 3 and bool_and(status = 'done') from inbox where message_id in ('first', 'held', 'm2')`)
		if r := stored(t, db, "m1"); r.Status != "pending" || r.Fence != 0 {
			t.Errorf("it is %+v", r)
		}
		write(t, db, `update inbox set status = 'done', done_fence = fence where message_id = 'rival'`)
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		stop()
		if n := len(strings.Fields(handled.String())); n != 3 {
			t.Errorf("handled: %s", &handled)
		}
	})

	t.Run("messages of a key run in order, also those of one page and those beyond the slots", func(t *testing.T) {
		db := fresh(t)
		var handled diary
		finish := make(chan struct{})
		p := processor(db, func(_ context.Context, d *inbox.Delivery) error {
			if d.OrderingKey == "k" {
				handled.note("%s", d.ID)
				<-finish
			}
			return nil
		})
		p.Concurrency = 3
		startWithFreeSlots(t, db, p)
		mustDeliver(t, p, "a=1@k", "b=1@k", "c=1@l", "d=1@m", "e=1@n", "f=1@o", "g=1@k")
		await.Row(t, db, `select count(*) filter (where status = 'done') = 5 and count(*) filter (where status = 'running') = 1 from inbox`)
		close(finish)
		await.Row(t, db, `select bool_and(status = 'done' and attempts = 1) from inbox`)
		handled.want(t, "a b g")
	})

	t.Run("what comes behind another message before the slow poll", func(t *testing.T) {
		db := fresh(t)
		p := processor(db, noting(&diary{}))
		p.Wake, p.Listening = make(chan struct{}), func() bool { return true }
		startWithFreeSlots(t, db, p)
		const slowPoll = time.Second
		await.Soon(t, 2*slowPoll, func(try int) { // else it is four
			texts := make([]string, 5)
			for i := range texts {
				texts[i] = fmt.Sprintf("m%d-%d=1@k", try, i)
			}
			mustDeliver(t, p, texts...)
			await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		})
	})

	t.Run("nothing once the program stops: it releases what is stored meanwhile", func(t *testing.T) {
		db := fresh(t)
		var handled diary
		p := unpolled(db, noting(&handled))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stop := startWithFreeSlotsUntil(ctx, t, db, p)
		release := deliverHeld(t, db, p, "m1=x@k")
		cancel()
		release()
		stop()
		if r := stored(t, db, "m1"); r.Status != "pending" || r.Attempts != 0 || r.DueIn > 0 {
			t.Errorf("it is %+v", r)
		}
		handled.want(t, "")
	})
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	room := func(t *testing.T, p *inbox.Processor) <-chan int {
		t.Helper()
		found := make(chan int, 1)
		go func() { found <- p.Capacity(t.Context()) }()
		return found
	}
	// wantNone asks until a context ends, at which Capacity returns 0. Slots would be returned first.
	wantNone := func(t *testing.T, p *inbox.Processor) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if n := p.Capacity(ctx); n != 0 {
			t.Fatalf("there is room for %d", n)
		}
	}
	want := func(t *testing.T, found <-chan int, want int) {
		t.Helper()
		if n := await.Receive(t, "room", found); n != want {
			t.Errorf("there is room for %d, want %d", n, want)
		}
	}

	t.Run("is the free slots of a processor that runs", func(t *testing.T) {
		db := fresh(t)
		finish := make(chan struct{})
		p := unpolled(db, func(context.Context, *inbox.Delivery) error { <-finish; return nil })
		p.Concurrency = 4
		wantNone(t, p)
		found := room(t, p)
		start(t, p)
		want(t, found, 4)
		mustDeliver(t, p, "a=1@a", "b=1@b", "c=1@c", "d=1@d")
		wantNone(t, p)
		found = room(t, p)
		finish <- struct{}{}
		want(t, found, 1)
		close(finish)
	})

	t.Run("is none while older messages wait for slots", func(t *testing.T) {
		db := fresh(t)
		const older = 60
		putMany(t, db, `'older' || n`, `'older' || n`, older)
		var begun diary
		p := processor(db, func(ctx context.Context, d *inbox.Delivery) error {
			begun.note("%s", strings.TrimRight(d.ID, "0123456789"))
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond): // pages could come meanwhile
			}
			return nil
		})
		p.Concurrency = 4
		receiveFor(t, db, p)
		for i := range 20 {
			post(t, db, of(fmt.Sprintf("m%d=1@%d", i, i))...)
		}
		start(t, p)
		await.Row(t, db, `select count(*) = 80 and bool_and(status = 'done') from inbox`)
		before, _, _ := strings.Cut(begun.String(), " m")
		if n := len(strings.Fields(before)); n < older-p.Concurrency {
			t.Errorf("%d of %d older messages were begun before a younger one", n, older)
		}
	})

	t.Run("is none while the store is away", func(t *testing.T) {
		t.Parallel()
		away := testdb.OpenAt(t, testdb.URL(t), postgres.Options{})
		away.Close()
		p := processor(away, noting(&diary{}))
		start(t, p)
		wantNone(t, p)
	})

	t.Run("is 0 when its context has ended", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if n := processor(nil, nil).Capacity(ctx); n != 0 {
			t.Errorf("there is room for %d", n)
		}
	})
}
