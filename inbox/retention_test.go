package inbox_test

import (
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// finished puts messages into the inbox that were done so long ago.
func finished(t *testing.T, db *postgres.DB, ago string, ids ...string) {
	t.Helper()
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence, finished_at)
		select 'r', id, id, 't', '', '{}', '', 'done', 0, clock_timestamp() - $2::interval from unnest($1::text[]) id`, ids, ago)
}

func publish(t *testing.T, db *postgres.DB, topic, id string) {
	t.Helper()
	write(t, db, `insert into outbox (topic, message_id, payload, metadata) values ($1, $2, '', '{}')`, topic, id)
}

func wantDeleted(t *testing.T, db *postgres.DB, retention time.Duration, limit, want int) {
	t.Helper()
	if n, err := inbox.DeleteExpired(t.Context(), db, retention, limit); err != nil || n != want {
		t.Errorf("%d deleted, want %d: %v", n, want, err)
	}
}

func TestDeleteExpired(t *testing.T) {
	t.Parallel()
	const week = 7 * 24 * time.Hour
	// Ten old and two young ones that are done, and old ones that are not.
	fill := func(t *testing.T) *postgres.DB {
		t.Helper()
		db := testdb.Reused(t)
		write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence, finished_at)
			select 'r', 'done' || n, n, 't', '', '{}', '', 'done', 0, clock_timestamp() - n * interval '1 day' from generate_series(5, 16) n`)
		putDeadLetters(t, db)
		write(t, db, `update inbox set received_at = clock_timestamp() - interval '1 year'`)
		return db
	}

	t.Run("takes the oldest that are done, a few at a time, and keeps what was discarded", func(t *testing.T) {
		t.Parallel()
		db := fill(t)
		testdb.Must(t, inbox.Discard(t.Context(), db, number(t, db, "m1"), "ada"))
		write(t, db, `update inbox set finished_at = clock_timestamp() - interval '1 year' where status = 'discarded'`)
		wantDeleted(t, db, week, 6, 6)
		await.Row(t, db, `select min(finished_at) > clock_timestamp() - interval '11 days' from inbox where status = 'done'`)
		wantDeleted(t, db, week, 6, 4)
		wantDeleted(t, db, week, 6, 0)
		await.Row(t, db, `select count(*) filter (where status = 'done') = 2 and count(*) filter (where status <> 'done') = 4 from inbox`)
	})

	t.Run("what a dead process held is deleted by the next", func(t *testing.T) {
		t.Parallel()
		db := fill(t)
		tx := testdb.Begin(t, db.Pool(), `delete from inbox where finished_at < clock_timestamp() - interval '11 days'`)
		wantDeleted(t, db, week, 100, 4) // beside it: what it does not hold
		testdb.Must(t, tx.Rollback(t.Context()))
		wantDeleted(t, db, week, 100, 6)
	})
}

// Whatever the windows are, the inbox does not forget what the outbox can still
// deliver.
func TestDeleteExpired_keepsMessagesThatTheOutboxCanDeliver(t *testing.T) {
	t.Parallel()

	t.Run("a message goes when its message in the outbox has gone", func(t *testing.T) {
		db := fresh(t)
		for _, id := range []string{"m1", "m2", "m3"} {
			publish(t, db, "t", id)
			finished(t, db, "1 year", id)
		}
		wantDeleted(t, db, 0, 1000, 0)
		write(t, db, `delete from outbox where message_id = 'm1'`)
		wantDeleted(t, db, 0, 1000, 1)
		await.Row(t, db, `select array_agg(message_id order by id) = '{m2,m3}' from inbox`)
		write(t, db, `delete from outbox where message_id = 'm3'`) // m2 is still there
		wantDeleted(t, db, 0, 1000, 0)
		write(t, db, `delete from outbox`)
		wantDeleted(t, db, 0, 1000, 2)
	})

	t.Run("whatever the topic is", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, "b", "m1")
		finished(t, db, "1 year", "m1")
		publish(t, db, "a", "m2")
		publish(t, db, "c", "m3")
		wantDeleted(t, db, 0, 1000, 0)
		write(t, db, `delete from outbox where topic = 'b'`)
		wantDeleted(t, db, 0, 1000, 1)
	})

	t.Run("what the outbox has gained since holds up nothing", func(t *testing.T) {
		db := fresh(t)
		finished(t, db, "1 year", "m1")
		publish(t, db, "t", "m2")
		wantDeleted(t, db, 0, 1000, 1)
	})
}

func TestDeleteExpiredQuarantine(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	write(t, db, `insert into inbox_quarantine (receiver, message_id, payload, metadata, payload_hash, received_at)
		select 'r', n, '', '{}', '', clock_timestamp() - n * interval '1 day' from generate_series(1, 10) n`)
	for _, want := range []int{4, 1, 0} {
		if n, err := inbox.DeleteExpiredQuarantine(t.Context(), db, 132*time.Hour, 4); err != nil || n != want {
			t.Errorf("%d deleted, want %d: %v", n, want, err)
		}
	}
	await.Row(t, db, `select count(*) = 5 and max(message_id::int) = 5 from inbox_quarantine`)
}
