package inbox_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// While any transaction holds an old snapshot, as a dump or a report does, PostgreSQL
// keeps the dead entries of an index. A claim does not read them again and again.
func TestClaim_readsNoDeadEntriesBehindAnOldSnapshot(t *testing.T) {
	testdb.Long(t, "it writes thousands of messages")
	t.Parallel()
	url := testdb.URL(t)
	sent := &statements{}
	db, its := open(t, url, postgres.Options{}), open(t, url, postgres.Options{MaxConns: 1, Tracer: sent})
	write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
	snapshot := begin(t, db)
	run(t, snapshot, `set transaction isolation level repeatable read`)
	run(t, snapshot, `select count(*) from inbox`)
	const dead = 3000
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		select 'r', n, n, 't', '', '{}', '' from generate_series(1, $1::int) n`, dead)
	write(t, db, `update inbox set status = 'done', done_fence = fence`)

	p := processor(its, noting(&diary{}))
	inbox.NeverLookFully(p)
	stop := start(t, p)
	const claims = 30
	await.True(t, "it claims", func() bool { return sent.claims.Load() >= claims })
	stop()
	its.Close()
	if err := snapshot.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	read, made := entriesRead(t, db), sent.claims.Load()
	// The first claim reads them, and the update above did.
	if most := 6*dead + 20*made; read > most {
		t.Errorf("%d claims behind %d dead entries read %d rows and entries of indexes, want at most %d", made, dead, read, most)
	}
	t.Logf("%d claims read %d rows and entries of indexes", made, read)
}

// A message may be committed later than its due time, behind what claims have found.
func TestClaim_findsWhatIsCommittedLate(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	start(t, processor(db, noting(&diary{})))
	late, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = late.Rollback(t.Context()) })
	b := &pgx.Batch{}
	if err := inbox.Accept(b, "r", inbox.Message{ID: "late"}); err != nil {
		t.Fatal(err)
	}
	if err := late.SendBatch(t.Context(), b).Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} { // claims find younger ones
		put(t, db, id, id)
		await.Row(t, db, `select status = 'done' and pg_sleep(0.1) is not null from inbox where message_id = $1`, id)
	}
	run(t, late, `commit`)
	await.Row(t, db, `select bool_and(status = 'done') and count(*) = 6 from inbox`)
}
