package inbox_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// putMany puts messages of a partition into the inbox of the receiver r.
func putMany(t *testing.T, db *postgres.DB, partition string, messages int) {
	t.Helper()
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, first)
		select 'r', $1 || n, $1 || n, $1, 't', '', '{}', '', true from generate_series(1, $2::int) n`, partition, messages)
}

// However many messages one partition has, and however long its handlers take, others are handled.
func TestFairness_aCrowdLeavesSlotsToOthers(t *testing.T) {
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

// However many keys a transaction has locked, claims go on, and the other keys are repaired.
func TestPromote_besideManyKeysThatAreLocked(t *testing.T) {
	t.Parallel()
	db, handled, wake := testdb.Reused(t), make(chan string, 400), make(chan struct{}, 1)
	putMany(t, db, "k", 300)
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
	testrun.Row(t, db, `select count(*) = 100 from inbox where status = 'done' and partition_key <> ''`)
	testdb.Must(t, locked.Rollback(t.Context()))
	done(t, db)
}

// A repair reads a bounded number of keys, and goes on behind them, so however many wait hold up no
// claim and hide no key.
func TestPromote_repairsManyKeysInParts(t *testing.T) {
	testdb.Long(t, "it stores many messages")
	t.Parallel()
	db := testdb.Open(t)
	write(t, db, `
insert into inbox (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, first)
select 'r', kind || n || first, kind || n, 'paused', 't', '', '{}', '', first and kind = 'whole'
  from unnest(array['broken', 'whole']) kind, generate_series(1, 2500) n, unnest(array[true, false]) first`)
	put(t, db, "last", "z")
	write(t, db, `update inbox set first = false where message_id = 'last'`)
	p := processor(t, db, answer(nil))
	p.Pause(false, "paused")
	start(t, p)
	testrun.Row(t, db, `select status = 'done' from inbox where message_id = 'last'`)
	testrun.Row(t, db, `select count(*) = 5000 from inbox where first`)
}
