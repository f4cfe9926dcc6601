package outbox_test

import (
	"testing"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// The commit of an offset is not waited for. A crash of the server may lose it, and then
// what was received behind it is redelivered.
func TestOffset_whenLostThePageIsRedelivered(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, numbered(3)...)
	r := read(t, db, "g")
	r.wantNext(t, numbered(3)...)
	write(t, db, `update outbox_offsets set transaction_id = '0', "offset" = 0`) // what the server finds after the crash
	r.wantNext(t, numbered(3)...)
	publish(t, db, "m4")
	r.wantNext(t, "m4")
}

// DeleteExpired deletes what lies below an offset. Its own commit is waited for, and flushes what
// was written before it, so no crash loses the offset and keeps the deletion.
func TestDeleteExpired_deletesNothingAboveADurableOffset(t *testing.T) {
	t.Parallel()
	db, err := postgres.Open(t.Context(), testdb.URL(t), postgres.Options{
		AllowUnsafeDurability: true, Settings: map[string]string{"synchronous_commit": "on"}, // the servers of tests have it off
	})
	must(t, err)
	t.Cleanup(db.Close)
	publish(t, db, numbered(3)...)
	r := read(t, db, "g")
	r.take(t, 3)
	write(t, db, `update outbox set created_at = clock_timestamp() - interval '2 days'`)

	var moved string
	offset := begin(t, db)
	run(t, offset, `set local synchronous_commit = off`)
	run(t, offset, `update outbox_offsets set "offset" = "offset"`)
	must(t, offset.Commit(t.Context()))
	must(t, db.QueryRow(t.Context(), `select pg_current_wal_insert_lsn()::text`).Scan(&moved))
	if deleted, err := outbox.DeleteExpired(t.Context(), db, time.Hour, 10); err != nil || deleted != 3 {
		t.Fatalf("%d deleted: %v", deleted, err)
	}
	durable := testdb.One[bool](t, db, `select pg_current_wal_flush_lsn() >= $1::text::pg_lsn`, moved)
	if !durable {
		t.Error("the messages are deleted, and the offset is not durable")
	}
}
