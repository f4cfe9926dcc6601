package inbox_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// What a message costs must not grow with the messages around it. These count the
// rows that PostgreSQL read, after tables grew without being analyzed anew.

// TestClaim_readsNoMoreAsTheInboxGrows: also with a plan that the session made while
// the inbox was empty.
func TestClaim_readsNoMoreAsTheInboxGrows(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes thousands of messages")
	const insert = `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence) `
	for name, test := range map[string]struct {
		inbox    []string
		policy   inbox.Parked
		handlers int
		claimed  int
	}{
		"behind a backlog": {
			inbox:    []string{insert + `select 'r', n, n, 't', '', '{}', '', 'pending', null from generate_series(1, 3000) n`},
			handlers: 1, claimed: 1,
		},
		"among messages that are done, of which alone the planner knows": {
			inbox: []string{
				insert + `select 'r', 'done' || n, 'done' || n, 't', '', '{}', '', 'done', 0 from generate_series(1, 3000) n`,
				`analyze inbox`,
				insert + `select 'r', n, n, 't', '', '{}', '', 'pending', null from generate_series(1, 1000) n`,
			},
			handlers: 8, claimed: 8,
		},
		"beside dead letters of another key": {
			inbox: []string{
				insert + `select 'r', 'dead' || n, 'hot', 't', '', '{}', '', 'dead', null from generate_series(1, 3000) n`,
				insert + `select 'r', n, n, 't', '', '{}', '', 'pending', null from generate_series(1, 20) n`,
			},
			handlers: 8, claimed: 8,
		},
		"behind dead letters of its key, which it may pass": {
			inbox: []string{
				insert + `select 'r', 'dead' || n, 'hot', 't', '', '{}', '', 'dead', null from generate_series(1, 3000) n`,
				insert + `select 'r', n, 'hot', 't', '', '{}', '', 'pending', null from generate_series(1, 20) n`,
			},
			policy: inbox.Pass, handlers: 8, claimed: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			sent := &statements{}
			db, its := open(t, url, postgres.Options{}), open(t, url, postgres.Options{MaxConns: 1, Tracer: sent})
			write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
			begun := make(chan struct{}, 10)
			p := processor(its, func(ctx context.Context, _ *inbox.Delivery) error {
				begun <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			})
			p.Concurrency, p.Policy.Parked, p.Drain = test.handlers, test.policy, time.Nanosecond
			stop := start(t, p)
			await.True(t, "its session has planned claims, and keeps the plan", func() bool { return sent.claims.Load() > 10 })
			stop()
			for _, sql := range test.inbox {
				write(t, db, sql)
			}
			before := sent.claims.Load()
			p.Poll = time.Hour // it claims once
			stop = start(t, p)
			for range test.claimed {
				await.Receive(t, "a message", begun)
			}
			stop()
			its.Close()
			read := entriesRead(t, db)
			if most := int64(100 + 20*test.claimed); read > most || sent.claims.Load() != before+1 || len(begun) > 0 {
				t.Errorf("%d claims of %d messages, and %d more, read %d rows and entries of indexes, want at most %d",
					sent.claims.Load()-before, test.claimed, len(begun), read, most)
			}
			t.Logf("%d rows and entries of indexes were read", read)
		})
	}
}

// entriesRead is how many rows of the inbox were ever read in sequence, and how many
// entries of its indexes. What a session did is counted when it has ended.
func entriesRead(t *testing.T, db *postgres.DB) int64 {
	t.Helper()
	db.Pool().Reset()
	testdb.Alone(t, db)
	return one[int64](t, db, `
select (select seq_tup_read from pg_stat_user_tables where relname = 'inbox')
     + (select sum(idx_tup_read)::bigint from pg_stat_user_indexes where relname = 'inbox')`)
}

// TestOperatorsReadNoMoreBehindABacklog: what waits behind a parked message is counted
// among the messages of its key, and not among all of its receiver.
func TestOperatorsReadNoMoreBehindABacklog(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.Open(t)
	write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
	put(t, db, "first", "k")
	write(t, db, `analyze inbox`)
	const parked = 20
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status)
		select 'r', n, 'k' || n, 't', '', '{}', '', case when n <= $1 then 'dead' else 'pending' end from generate_series(1, 3000) n`, parked)
	putMany(t, db, `'behind' || n`, `'k1'`, 3)
	before := rowsRead(t, db)
	entries, err := inbox.List(t.Context(), db, inbox.StatusDead, 0, 100)
	if err != nil || len(entries) != parked || entries[0].Behind != 3 || entries[1].Behind != 0 {
		t.Fatalf("%d are parked, %v", len(entries), err)
	}
	if read := rowsRead(t, db) - before; read > 3*parked {
		t.Errorf("listing %d parked messages read %d rows", parked, read)
	}
	before = rowsRead(t, db)
	if e, err := inbox.Show(t.Context(), db, entries[0].Number); err != nil || e.Behind != 3 {
		t.Fatalf("%d are behind it, %v", e.Behind, err)
	}
	if read := rowsRead(t, db) - before; read > 10 {
		t.Errorf("showing a message read %d rows", read)
	}
}

func TestReceivingReadsNoMoreAsTheInboxGrows(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes thousands of messages")
	db := open(t, testdb.URL(t), postgres.Options{Settings: outbox.SessionSettings()})
	const messages = 1200 // three pages
	write(t, db, `insert into outbox (topic, message_id, payload, metadata)
		select $1, 'm' || n, '', '{}' from generate_series(1, $2::int) n`, topic, messages)
	receive(t, db, "r")
	awaitReceived(t, db)
	await.Row(t, db, `select n_tup_ins >= 1200 from pg_stat_user_tables where relname = 'inbox'`)
	read := one[int64](t, db, `select seq_tup_read from pg_stat_user_tables where relname = 'inbox'`)
	if read > 0 {
		t.Errorf("receiving %d messages read %d rows of the inbox in sequence", messages, read)
	}
}

// TestReceivingReadsNoMoreBehindABacklogThatNobodyCounted: that of a server that was
// just restored or upgraded, of which the planner knows nothing yet.
func TestReceivingReadsNoMoreBehindABacklogThatNobodyCounted(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes thousands of messages")
	db := testdb.Open(t)
	write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		select 'r', 'open' || n, lpad(n::text, 36, '0'), 't', '', '{}', '' from generate_series(1, 24000) n`)
	const messages = 50
	for i := range messages {
		accept(t, db, inbox.Message{ID: strconv.Itoa(i)})
	}
	db.Pool().Reset()
	await.Row(t, db, `select n_tup_ins >= 24050 from pg_stat_user_tables where relname = 'inbox'`)
	read := one[int64](t, db, `select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'inbox'`)
	if read > 20*messages {
		t.Errorf("receiving %d messages read %d entries of indexes", messages, read)
	}
}

// A message reads an entry along its key and one by number, to lock the oldest that is
// open and the message itself; one that is new to a key reads another one along it, to
// wake the oldest. That holds whatever lies in the inbox and however many wait behind the same
// key.
func TestAcceptingReadsNoMoreAsTheInboxGrows(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes thousands of messages")
	db := testdb.Open(t)
	write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
	write(t, db, `analyze inbox`) // it is empty: what is planned now is kept
	for range 10 {
		accept(t, db, inbox.Message{ID: "early", OrderingKey: "early"})
	}
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence)
		select 'r', 'old' || n, 'k', 't', '', '{}', '', 'done', 0 from generate_series(1, 4000) n`)
	putMany(t, db, `'open' || n`, `'zz' || n`, 4000)
	waits(t, db, "waiting")
	const messages = 100
	for range 2 {
		for i := range messages {
			accept(t, db, note(strconv.Itoa(i), "x"))
			accept(t, db, inbox.Message{ID: "own" + strconv.Itoa(i)}) // of a key of its own
		}
	}
	if !isDue(t, db, "waiting") {
		t.Error("nobody woke the key")
	}
	// What a session did is counted when it has ended.
	db.Pool().Reset()
	testdb.Alone(t, db)
	var inSequence, alongKeys, byID, pages int64
	err := db.QueryRow(t.Context(), `
select (select seq_tup_read from pg_stat_user_tables where relname = 'inbox'),
       (select idx_tup_read from pg_stat_user_indexes where indexrelname = 'inbox_open_by_key'),
       (select idx_tup_read from pg_stat_user_indexes where indexrelname = 'inbox_pkey'),
       (select idx_blks_hit + idx_blks_read from pg_statio_user_indexes where indexrelname = 'inbox_open_by_key')`).
		Scan(&inSequence, &alongKeys, &byID, &pages)
	must(t, err)
	// Of four times as many, a quarter is new to the key of the one that waits.
	// The one that waits has been written three times: while an older snapshot is
	// about, as that of an analyze, the dead entries of it are read as well. Few are
	// those of the early ones.
	const versions, few = 3, 50
	if inSequence > 0 || alongKeys > 5*versions*messages+few || byID > 4*versions*messages+few {
		t.Errorf("twice %d messages, twice: read %d rows in sequence, %d entries along keys, %d by id", messages, inSequence, alongKeys, byID)
	}
	// Some to write the 8,200 that are there, and some for each read.
	t.Logf("%d rows in sequence, %d entries along keys, %d by id, %d pages", inSequence, alongKeys, byID, pages)
	if most := int64(8200*5 + 4*messages*10); pages > most {
		t.Errorf("%d pages of the keys, want at most %d", pages, most)
	}
}
