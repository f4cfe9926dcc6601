package outbox_test

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

const day = 24 * time.Hour

// fill publishes m0001 to m0010, each in a commit of its own: the first five are
// two days old.
func fill(t *testing.T) *postgres.DB {
	t.Helper()
	db := testdb.Open(t)
	for _, id := range numbered(10) {
		publish(t, db, id)
	}
	write(t, db, `update outbox set created_at = created_at - interval '2 days' where message_id <= 'm0005'`)
	return db
}

// received moves a group to where it has received everything up to a message.
func received(t *testing.T, db *postgres.DB, group, id string) {
	t.Helper()
	write(t, db, `
insert into outbox_offsets (topic, consumer_group, transaction_id, "offset")
select topic, $1, transaction_id, "offset"
  from outbox
 where message_id = $2
    on conflict (topic, consumer_group) do update
   set transaction_id = excluded.transaction_id,
       "offset" = excluded."offset"`, group, id)
}

func wantDeleted(t *testing.T, db *postgres.DB, retention time.Duration, limit, want int) {
	t.Helper()
	if n, err := outbox.DeleteExpired(t.Context(), db, retention, limit); err != nil || n != want {
		t.Errorf("%d deleted, want %d: %v", n, want, err)
	}
}

func wantOldest(t *testing.T, db *postgres.DB, want string) {
	t.Helper()
	if oldest := testdb.One[string](t, db, `select coalesce(min(message_id), '') from outbox`); oldest != want {
		t.Errorf("the oldest that is left is %q, want %q", oldest, want)
	}
}

func TestDeleteExpired(t *testing.T) {
	t.Parallel()

	t.Run("what all groups have received and is old enough goes, a few at a time", func(t *testing.T) {
		t.Parallel()
		db := fill(t)
		received(t, db, "g", "m0008")
		wantDeleted(t, db, day, 3, 3)
		wantOldest(t, db, "m0004")
		wantDeleted(t, db, day, 3, 2)
		wantDeleted(t, db, day, 3, 0)
		wantOldest(t, db, "m0006")
	})

	t.Run("what one group has not received stays, however old it is", func(t *testing.T) {
		t.Parallel()
		db := fill(t)
		received(t, db, "ahead", "m0010")
		received(t, db, "behind", "m0002")
		wantDeleted(t, db, 0, 100, 2)
		wantOldest(t, db, "m0003")
	})

	t.Run("messages of one commit are deleted once received, and no others", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, numbered(5)...)
		received(t, db, "g", "m0003")
		wantDeleted(t, db, 0, 100, 3)
		read(t, db, "g").wantNext(t, "m0004", "m0005")
	})

	t.Run("without a reader everything stays", func(t *testing.T) {
		t.Parallel()
		db := fill(t)
		wantDeleted(t, db, 0, 100, 0)
		write(t, db, `insert into outbox_offsets values ($1, 'new', '0', 0), ('other', 'g', '18446744073709551615', 1)`, topic)
		wantDeleted(t, db, 0, 100, 0)
	})

	t.Run("each topic goes by its own readers", func(t *testing.T) {
		t.Parallel()
		db := fill(t)
		write(t, db, `insert into outbox (topic, message_id, payload, metadata) select 'other', 'o' || n, '', '{}' from generate_series(1, 3) n`)
		received(t, db, "g", "m0010")
		received(t, db, "g", "o2")
		wantDeleted(t, db, 0, 100, 12)
		wantOldest(t, db, "o3")
	})

	t.Run("several at once share the work", func(t *testing.T) {
		db := fresh(t)
		const messages = 300
		publish(t, db, numbered(messages)...)
		received(t, db, "g", "m0300")
		var deleted atomic.Int64
		var callers errgroup.Group
		for range 6 {
			callers.Go(func() error {
				for {
					n, err := outbox.DeleteExpired(t.Context(), db, 0, 7)
					if n == 0 || err != nil {
						return err
					}
					deleted.Add(int64(n))
				}
			})
		}
		if err := callers.Wait(); err != nil {
			t.Error(err)
		}
		// Who came second to all of its rows has gone home early, and the first deleted them.
		if deleted.Load() != messages {
			t.Errorf("%d deleted, want %d", deleted.Load(), messages)
		}
		wantOldest(t, db, "")
	})

	t.Run("what a dead process held is deleted by the next", func(t *testing.T) {
		t.Parallel()
		db := fill(t)
		received(t, db, "g", "m0010")
		dead := testdb.Begin(t, db.Pool(), `delete from outbox where message_id <= 'm0002'`)
		deleted := make(chan int, 1)
		go func() {
			n, err := outbox.DeleteExpired(t.Context(), db, day, 100)
			if err != nil {
				t.Error(err)
			}
			deleted <- n
		}()
		await.Blocked(t, db, 1)
		testdb.Must(t, dead.Rollback(t.Context()))
		if n := await.Receive(t, "the deletion", deleted); n != 5 {
			t.Errorf("%d deleted, want 5", n)
		}
	})
}

// Statements are planned while the tables are small, and the plans are kept.
func TestDeleteExpired_readsAlmostNothingIfNothingHasExpired(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes thousands of messages")
	const live, limit = 10_000, 500
	for _, test := range []struct{ name, offset string }{
		{"all of it received, and young", "m10000"},
		{"nothing of it received", "m1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			db := fresh(t)
			for range 10 {
				wantDeleted(t, db, day, limit, 0)
			}
			write(t, db, `insert into outbox (topic, message_id, payload, metadata) select $1, 'm' || n, '', '{}' from generate_series(1, $2::int) n`, topic, live)
			received(t, db, "g", test.offset)
			before := rowsRead(t, db)
			for range 10 {
				wantDeleted(t, db, day, limit, 0)
			}
			if read := rowsRead(t, db) - before; read > 10*limit {
				t.Errorf("%d rows were read by ten calls, want at most %d", read, 10*limit)
			}
		})
	}
}

// rowsRead is how many rows of the outbox were ever read. What a session did is
// counted when it rests or ends.
func rowsRead(t *testing.T, db *postgres.DB) int64 {
	t.Helper()
	db.Pool().Reset()
	testdb.Alone(t, db)
	return testdb.One[int64](t, db, `select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_user_tables where relname = 'outbox'`)
}

// DeleteExpired deletes what lies below an offset. Its own commit is waited for, and flushes what
// was written before it, so no crash loses the offset and keeps the deletion.
func TestDeleteExpired_deletesNothingAboveADurableOffset(t *testing.T) {
	t.Parallel()
	db, err := postgres.Open(t.Context(), testdb.URL(t), postgres.Options{
		AllowUnsafeDurability: true, Settings: map[string]string{"synchronous_commit": "on"}, // the servers of tests have it off
	})
	testdb.Must(t, err)
	t.Cleanup(db.Close)
	publish(t, db, numbered(3)...)
	r := read(t, db, "g")
	r.take(t, 3)
	write(t, db, `update outbox set created_at = clock_timestamp() - interval '2 days'`)

	var moved string
	offset := testdb.Begin(t, db.Pool(), `set local synchronous_commit = off`)
	testdb.Exec(t, offset, `update outbox_offsets set "offset" = "offset"`)
	testdb.Must(t, offset.Commit(t.Context()))
	testdb.Must(t, db.QueryRow(t.Context(), `select pg_current_wal_insert_lsn()::text`).Scan(&moved))
	if deleted, err := outbox.DeleteExpired(t.Context(), db, time.Hour, 10); err != nil || deleted != 3 {
		t.Fatalf("%d deleted: %v", deleted, err)
	}
	durable := testdb.One[bool](t, db, `select pg_current_wal_flush_lsn() >= $1::text::pg_lsn`, moved)
	if !durable {
		t.Error("the messages are deleted, and the offset is not durable")
	}
}
