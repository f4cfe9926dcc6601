package restore_test

import (
	"context"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/migrations"
)

// TestRepairDuringAutovacuum: the server vacuums what has just been restored, for
// hours where that is large. It gives way to who waits for the table, but not to
// who waits for less than deadlock_timeout. It needs a server that looks for work
// more often than once a minute.
func TestRepairDuringAutovacuum(t *testing.T) {
	testdb.Long(t, "it waits for seconds")
	t.Parallel()
	server, err := local.Start(t.Context(), local.Options{InMemory: true, Settings: map[string]string{"autovacuum_naptime": "1s"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	url := server.URL("postgres")
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	db, err := postgres.Open(t.Context(), url, postgres.Options{AllowPlaintext: true, AllowUnsafeDurability: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	k := books{t, db}
	// A page takes a tenth of a second and more.
	k.exec(`
alter table inbox set (
  autovacuum_vacuum_insert_threshold = 0, autovacuum_vacuum_insert_scale_factor = 0,
  autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1);
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
select 'r', n::text, 'k', 't', decode(repeat(md5(n::text), 100), 'hex'), '{}', ''
  from generate_series(1, 5000) n`)
	k.restoreBehind()
	await.True(t, "the inbox is vacuumed", func() bool {
		var vacuumed bool
		err := db.QueryRow(t.Context(), `select exists (select from pg_stat_progress_vacuum where relid = 'inbox'::regclass)`).Scan(&vacuumed)
		if err != nil {
			t.Fatal(err)
		}
		return vacuumed
	})
	ctx, cancel := context.WithTimeout(t.Context(), await.Stall)
	defer cancel()
	began := time.Now()
	if done, err := restore.Repair(ctx, db); err != nil || done.Received != 5000 || k.foreign() {
		t.Errorf("after %v: repaired %+v, foreign still: %t: %v", time.Since(began), done, k.foreign(), err)
	}
}
