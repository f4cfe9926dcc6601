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
		policy   inbox.DeadLetters
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
			db, its := testdb.OpenAt(t, url, postgres.Options{}), testdb.OpenAt(t, url, postgres.Options{MaxConns: 1, Tracer: sent})
			write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
			begun := make(chan struct{}, 10)
			claiming := func(poll time.Duration) (stop func()) {
				p := processor(its, func(ctx context.Context, _ *inbox.Delivery) error {
					begun <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				})
				p.Concurrency, p.Policy.DeadLetters, p.Drain, p.MinClaimInterval = test.handlers, test.policy, time.Nanosecond, poll
				return start(t, p)
			}
			stop := claiming(time.Millisecond)
			await.True(t, "its session has planned claims, and keeps the plan", func() bool { return sent.claims.Load() > 10 })
			stop()
			for _, sql := range test.inbox {
				write(t, db, sql)
			}
			before := sent.claims.Load()
			stop = claiming(time.Hour) // it claims once
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

// TestClaim_passesWhatIsBlocked: however many messages wait behind another one of their key,
// a claim reads a window of them, and a free message behind them is soon claimed.
func TestClaim_passesWhatIsBlocked(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes thousands of messages")
	const blocked, window = 20_000, 1000
	for name, due := range map[string]string{
		"due":                      `clock_timestamp()`,
		"due, all at one time":     `'2026-01-01'`,
		"held back in a partition": `null`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			sent := &statements{}
			db, its := testdb.OpenAt(t, url, postgres.Options{}), testdb.OpenAt(t, url, postgres.Options{Tracer: sent})
			write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
			write(t, db, `
insert into inbox (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, status, due_at, fence, holder)
values ('r', 'running', 'hot', 'p', 't', '', '{}', '', 'running', now() + interval '1 hour', 1, 'other')`)
			write(t, db, `
insert into inbox (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, due_at)
select 'r', n, case when n <= $1 then 'hot' else 'free' end, 'p', 't', '', '{}', '', `+due+` from generate_series(1, $1::int + 1) n`, blocked)
			begun := make(chan string, 10)
			p := processor(its, func(ctx context.Context, d *inbox.Delivery) error {
				begun <- d.OrderingKey
				<-ctx.Done()
				return ctx.Err()
			})
			p.Drain = time.Nanosecond
			stop := start(t, p)
			if key := await.Receive(t, "a message", begun); key != "free" {
				t.Errorf("a message of key %s was claimed", key)
			}
			stop()
			its.Close()
			read, claims := entriesRead(t, db), sent.claims.Load()
			// Of a window: each message, what blocks it, its row, and once more to find the last.
			if most := claims * (4*window + 100); read > most {
				t.Errorf("%d claims read %d rows and entries of indexes, want at most %d", claims, read, most)
			}
			t.Logf("%d claims read %d", claims, read)
		})
	}
}

// entriesRead is how many rows of the inbox were ever read in sequence, and how many
// entries of its indexes. What a session did is counted when it has ended.
func entriesRead(t *testing.T, db *postgres.DB) int64 {
	t.Helper()
	db.Pool().Reset()
	testdb.Alone(t, db)
	return testdb.One[int64](t, db, `
select (select seq_tup_read from pg_stat_user_tables where relname = 'inbox')
     + (select sum(idx_tup_read)::bigint from pg_stat_user_indexes where relname = 'inbox')`)
}

// A message reads an entry along its key and one by number, to lock the oldest that is
// open and the message itself; one that is new to a key reads another one along it, to
// wake the oldest. That holds whatever lies in the inbox and however many wait behind the same
// key.
func TestAccept_readsNoMoreAsTheInboxGrows(t *testing.T) {
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
	var inSequence, alongKeys, byID int64
	err := db.QueryRow(t.Context(), `
select (select seq_tup_read from pg_stat_user_tables where relname = 'inbox'),
       (select idx_tup_read from pg_stat_user_indexes where indexrelname = 'inbox_open_by_key'),
       (select idx_tup_read from pg_stat_user_indexes where indexrelname = 'inbox_pkey')`).
		Scan(&inSequence, &alongKeys, &byID)
	testdb.Must(t, err)
	// Of four times as many, a quarter is new to the key of the one that waits, which has
	// been written three times: while an older snapshot is held, as that of an analyze, its
	// dead entries are read as well.
	const versions, early = 3, 50
	if inSequence > 0 || alongKeys > 5*versions*messages+early || byID > 4*versions*messages+early {
		t.Errorf("twice %d messages, twice: read %d rows in sequence, %d entries along keys, %d by id", messages, inSequence, alongKeys, byID)
	}
}
