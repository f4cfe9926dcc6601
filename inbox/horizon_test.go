package inbox_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

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
	db, its := testdb.OpenAt(t, url, postgres.Options{}), testdb.OpenAt(t, url, postgres.Options{MaxConns: 1, Tracer: sent})
	write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
	snapshot := testdb.Begin(t, db.Pool(), `set transaction isolation level repeatable read`)
	testdb.Exec(t, snapshot, `select count(*) from inbox`)
	const dead = 3000
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		select 'r', n, n, 't', '', '{}', '' from generate_series(1, $1::int) n`, dead)
	write(t, db, `update inbox set due_at = null, partition_key = 'p'`)
	write(t, db, `update inbox set status = 'running', deaths = 2, due_at = clock_timestamp()`)
	write(t, db, `update inbox set status = 'done', done_fence = fence`)

	p := processor(its, noting(&diary{}))
	inbox.NeverLookFully(p)
	stop := start(t, p)
	const claims = 30
	await.True(t, "it claims", func() bool { return sent.claims.Load() >= claims })
	stop()
	its.Close()
	testdb.Must(t, snapshot.Rollback(t.Context()))
	read, made := entriesRead(t, db), sent.claims.Load()
	// The first claim reads them, and the updates above did.
	if most := 15*dead + 20*made; read > most {
		t.Errorf("%d claims behind %d dead entries read %d rows and entries of indexes, want at most %d", made, dead, read, most)
	}
	t.Logf("%d claims read %d rows and entries of indexes", made, read)
}

// A message may be committed later than its due time, behind what claims have found.
func TestClaim_findsMessagesThatAreCommittedLate(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	start(t, processor(db, noting(&diary{})))
	late := testdb.Begin(t, db.Pool(), `select 1`)
	b := &pgx.Batch{}
	inbox.Accept(b, "r", inbox.Message{ID: "late"})
	testdb.Must(t, late.SendBatch(t.Context(), b).Close())
	for _, id := range []string{"a", "b", "c", "d", "e"} { // claims find younger ones
		put(t, db, id, id)
		await.Row(t, db, `select status = 'done' and pg_sleep(0.1) is not null from inbox where message_id = $1`, id)
	}
	testdb.Exec(t, late, `commit`)
	await.Row(t, db, `select bool_and(status = 'done') and count(*) = 6 from inbox`)
}

// A claim with a bound does not see them, so what it finds is no reason to rest for long.
func TestClaim_pollsSoonAfterABoundedRead(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	p := processor(db, noting(&diary{}))
	bell := make(chan struct{}, 1)
	p.Wake, p.Listening = bell, func() bool { return true }
	start(t, p)
	await.Soon(t, 3*time.Second, func(try int) { // else it is ten
		put(t, db, fmt.Sprint("first", try), "first")
		bell <- struct{}{}
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		write(t, db, `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, due_at)
values ('r', 'late' || $1::int, 'late', 't', '', '{}', '', clock_timestamp() - interval '500 ms')`, try)
		bell <- struct{}{}
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
	})
}

// A page holds messages back after a pause, in which no claim had seen any: the claim after
// it knows of them.
func TestClaim_findsMessagesThatAPageHeldBackAfterAPause(t *testing.T) {
	t.Parallel()
	sent := &statements{}
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{Tracer: sent})
	g := newGate(db, "slow")
	p := processor(db, g.handle)
	bell := make(chan struct{}, 1)
	p.Wake, p.Listening = bell, func() bool { return true }
	start(t, p)
	await.True(t, "it claims", func() bool { return sent.claims.Load() > 0 })
	<-time.After(1200 * time.Millisecond) // the next claim is a full scan
	var page []inbox.Message
	for n := range 20 {
		page = append(page, inbox.Message{ID: strconv.Itoa(n), Partition: "slow"})
	}
	_, err := p.Receive(t.Context(), page...)
	testdb.Must(t, err)
	claims := sent.claims.Load()
	bell <- struct{}{}
	await.True(t, "it claims again", func() bool { return sent.claims.Load() > claims && !inbox.Claims(p) })
	if !inbox.HoldsBack(p) {
		t.Error("the claim forgot that messages are held back")
	}
	close(g.open)
	await.Row(t, db, `select count(*) = 20 and bool_and(status = 'done') from inbox`)
}
