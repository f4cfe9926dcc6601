package outbox_test

import (
	"testing"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

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
