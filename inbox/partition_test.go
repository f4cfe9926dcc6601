package inbox_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// gate is a handler that holds the messages of partitions until it is opened, and counts
// how many of a partition run, and ran at a time.
type gate struct {
	db   *postgres.DB
	held map[string]bool // partitions
	open chan struct{}

	mu            sync.Mutex
	running, most map[string]int
}

func newGate(db *postgres.DB, held ...string) *gate {
	g := &gate{db: db, held: map[string]bool{}, open: make(chan struct{}), running: map[string]int{}, most: map[string]int{}}
	for _, partition := range held {
		g.held[partition] = true
	}
	return g
}

func (g *gate) handle(ctx context.Context, d *inbox.Delivery) error {
	g.mu.Lock()
	g.running[d.Partition]++
	g.most[d.Partition] = max(g.most[d.Partition], g.running[d.Partition])
	g.mu.Unlock()
	if g.held[d.Partition] {
		select {
		case <-g.open:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	g.mu.Lock()
	g.running[d.Partition]--
	g.mu.Unlock()
	return finish(ctx, g.db, d)
}

func (g *gate) runs(partition string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running[partition]
}

// acceptMany accepts messages of a partition, each of its own key.
func acceptMany(t *testing.T, db *postgres.DB, partition string, messages int) {
	t.Helper()
	for n := range messages {
		accept(t, db, inbox.Message{ID: partition + strconv.Itoa(n), Partition: partition})
	}
}

// A merchant that is slow and has very many messages holds at most its share of the slots,
// and the message of another one is handled while they stand before it.
func TestPartition_aSlowAndLargeOneDelaysNoOther(t *testing.T) {
	t.Parallel()
	const many, slots, share = 300, 8, 7
	for name, before := range map[string]string{
		"it is received by a processor that runs":  "",
		"it was due before the processor ran":      `due_at = due_at`,
		"another processor held it back, and died": `due_at = null`,
		"a half of it was held back":               `due_at = case when id % 2 = 0 then null else due_at end`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			g := newGate(db, "slow")
			p := processor(db, g.handle)
			p.Concurrency = slots
			send := func(id, partition string) { accept(t, db, inbox.Message{ID: id, Partition: partition}) }
			if before == "" {
				send = func(id, partition string) {
					post(t, db, outbox.Message{ID: id, Type: "letter", OrderingKey: id, Partition: partition})
				}
				receiveFor(t, db, p)
			}
			for n := range many {
				send("slow"+strconv.Itoa(n), "slow")
			}
			if before != "" {
				write(t, db, `update inbox set `+before)
			}
			start(t, p)
			await.True(t, "the share of the slow one runs", func() bool { return g.runs("slow") == share })
			send("quick", "quick")
			await.Row(t, db, `select exists (select from inbox where message_id = 'quick' and status = 'done')`)
			if g.runs("slow") != share {
				t.Errorf("%d messages of the slow partition run, want %d", g.runs("slow"), share)
			}
			await.Row(t, db, fmt.Sprintf(`select count(*) filter (where due_at is null) = %d from inbox`, many-share))
			close(g.open)
			await.Row(t, db, fmt.Sprintf(`select count(*) filter (where status = 'done' and attempts = 1) = %d from inbox`, many+1))
			if g.most["slow"] > share {
				t.Errorf("%d messages of the slow partition ran at a time, want at most %d", g.most["slow"], share)
			}
		})
	}
}

// Two slow partitions leave a slot to the next one.
func TestPartition_twoSlowOnesLeaveASlot(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	g := newGate(db, "a", "b")
	p := processor(db, g.handle)
	p.Concurrency = 64
	start(t, p)
	for _, next := range []struct {
		partition string
		share     int
	}{{"a", 56}, {"b", 7}} {
		acceptMany(t, db, next.partition, 60)
		await.True(t, next.partition+" has its share", func() bool { return g.runs(next.partition) == next.share })
	}
	accept(t, db, inbox.Message{ID: "quick", Partition: "quick"})
	await.Row(t, db, `select exists (select from inbox where message_id = 'quick' and status = 'done')`)
	close(g.open)
	await.Row(t, db, `select bool_and(status = 'done') and count(*) = 121 from inbox`)
}

// Messages without a partition may have all slots, and one partition alone the last.
func TestPartition_noneMayUseEverySlot(t *testing.T) {
	t.Parallel()
	for _, its := range []struct {
		partition    string
		slots, share int
	}{{"", 8, 8}, {"p", 1, 1}, {"p", 2, 1}, {"p", 4, 3}} {
		t.Run(fmt.Sprintf("%q of %d", its.partition, its.slots), func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			g := newGate(db, its.partition)
			p := processor(db, g.handle)
			p.Concurrency = its.slots
			acceptMany(t, db, its.partition, 20)
			start(t, p)
			await.True(t, "its share runs", func() bool { return g.runs(its.partition) == its.share })
			close(g.open)
			await.Row(t, db, `select bool_and(status = 'done') and count(*) = 20 from inbox`)
			if g.most[its.partition] != its.share {
				t.Errorf("%d ran at a time, want %d", g.most[its.partition], its.share)
			}
		})
	}
}

// What is held back keeps the order of its key.
func TestPartition_heldBackMessagesKeepTheOrderOfTheirKey(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	d := &diary{}
	for n := range 5 {
		for _, key := range []string{"k", "l"} {
			accept(t, db, inbox.Message{ID: key + strconv.Itoa(n), OrderingKey: key, Partition: "p"})
		}
	}
	write(t, db, `update inbox set due_at = null`)
	start(t, processor(db, func(ctx context.Context, its *inbox.Delivery) error {
		if its.OrderingKey == "k" {
			d.note("%s", its.ID)
		}
		return finish(ctx, db, its)
	}))
	await.Row(t, db, `select bool_and(status = 'done') and count(*) = 10 from inbox`)
	d.want(t, "k0 k1 k2 k3 k4")
}

// Many due messages of a slow partition cost few claims until those of another one start.
func TestClaim_readsPastManyDueMessagesOfAPartition(t *testing.T) {
	t.Parallel()
	const many = 2000
	sent := &statements{}
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{Tracer: sent})
	g := newGate(db, "slow")
	write(t, db, fmt.Sprintf(`
insert into inbox (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash)
select 'r', 's' || n, 's' || n, 'slow', 't', '', '{}', ''
  from generate_series(1, %d) n`, many))
	accept(t, db, inbox.Message{ID: "quick", Partition: "quick"})
	start(t, processor(db, g.handle))
	await.Row(t, db, `select exists (select from inbox where message_id = 'quick' and status = 'done')`)
	if n := sent.claims.Load(); n > many/20 {
		t.Errorf("%d claims until a message behind %d others was handled, want at most %d", n, many, many/20)
	}
	close(g.open)
}

// With one slot, what is held back and what is due take turns.
func TestClaim_withOneSlotTakesTurns(t *testing.T) {
	t.Parallel()
	const many = 100
	db := testdb.Open(t)
	d := &diary{}
	acceptMany(t, db, "slow", many)
	write(t, db, `update inbox set due_at = null`)
	accept(t, db, inbox.Message{ID: "quick", Partition: "quick"})
	p := processor(db, func(ctx context.Context, its *inbox.Delivery) error {
		d.note("%s", its.ID)
		return finish(ctx, db, its)
	})
	p.Concurrency = 1
	start(t, p)
	await.Row(t, db, fmt.Sprintf(`select bool_and(status = 'done') and count(*) = %d from inbox`, many+1))
	if at := slices.Index(strings.Fields(d.String()), "quick"); at > many/2 {
		t.Errorf("the due message was handled after %d messages that were held back", at)
	}
}

// While a processor is paused it claims nothing and starts nothing that it receives; what a
// paused partition receives is held back, while others go on.
func TestPause(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	sent := &statements{}
	db := testdb.OpenAt(t, url, postgres.Options{})
	p := processor(testdb.OpenAt(t, url, postgres.Options{Tracer: sent}), noting(&diary{}))
	other := processor(db, noting(&diary{}))
	other.Receiver = "other"
	send := func(id, partition string) {
		post(t, db, outbox.Message{ID: id, Type: "letter", OrderingKey: id, Partition: partition})
	}
	p.Pause(true)
	start(t, p)
	start(t, other)
	receiveFor(t, db, p)
	accept(t, db, inbox.Message{ID: "due", Partition: "b"})
	send("sent", "b")
	put(t, db, "others", "others")
	write(t, db, `update inbox set receiver = 'other' where message_id = 'others'`)
	await.Row(t, db, `select status = 'done' from inbox where message_id = 'others'`)
	await.Row(t, db, `select bool_and(attempts = 0) from inbox where receiver = 'r'`)
	if n := sent.claims.Load(); n > 0 {
		t.Errorf("%d claims while it was paused", n)
	}

	p.Pause(false, "a", "", "none")
	send("held", "a")
	accept(t, db, inbox.Message{ID: "held too", Partition: "a"})
	accept(t, db, inbox.Message{ID: "of none"})
	await.Row(t, db, `select count(*) = 3 and bool_and(status = 'done') from inbox where receiver = 'r' and partition_key <> 'a'`)
	await.Row(t, db, `select count(*) = 2 and bool_and(due_at is null and attempts = 0) from inbox where partition_key = 'a'`)
	p.Pause(false)
	await.Row(t, db, `select bool_and(status = 'done' and attempts = 1) from inbox`)
}
