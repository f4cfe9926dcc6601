package inbox_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/outbox"
)

// What a message costs must not grow with the messages around it. These count the
// rows that PostgreSQL read, after tables grew without being analyzed anew.

func TestAClaimReadsNoMoreBehindABacklog(t *testing.T) {
	t.Parallel()
	pgtest.Long(t, "it writes thousands of messages")
	db := pgtest.Open(t)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence)
		select 'r', 'old' || n, 'old' || n, 't', '', '{}', '', 'done', 0 from generate_series(1, 20000) n`)
	write(t, db, `analyze inbox`)
	const backlog = 2000
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		select 'r', n, n, 't', '', '{}', '' from generate_series(1, $1::int) n`, backlog)
	var handled atomic.Int32
	runProcessor(t, db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
		handled.Add(1)
		return inbox.Complete, nil
	})
	await(t, db, `select bool_and(status = 'done') from inbox`)
	await(t, db, `select n_tup_upd >= 4000 from pg_stat_user_tables where relname = 'inbox'`)
	var read int64
	if err := db.QueryRow(t.Context(), `select idx_tup_read from pg_stat_user_indexes where indexrelname = 'inbox_open_by_key'`).Scan(&read); err != nil {
		t.Fatal(err)
	}
	if read > 100*backlog {
		t.Errorf("claiming %d messages read %d entries of the index of open ones", backlog, read)
	}
	if n := handled.Load(); n != backlog {
		t.Errorf("%d handled", n)
	}
}

// TestOperatorsReadNoMoreBehindABacklog: what waits behind a parked message is counted
// among the messages of its key, and not among all of its receiver.
func TestOperatorsReadNoMoreBehindABacklog(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
	put(t, db, "first", "k")
	write(t, db, `analyze inbox`)
	const parked = 20
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status)
		select 'r', n, 'k' || n, 't', '', '{}', '', case when n <= $1 then 'dead' else 'pending' end from generate_series(1, 3000) n`, parked)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		select 'r', 'behind' || n, 'k1', 't', '', '{}', '' from generate_series(1, 3) n`)
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

// TestAClaimLooksForSuspectsAmongSuspects: and not among all that is due, where its
// plan is of a time when nobody knew of any.
func TestAClaimLooksForSuspectsAmongSuspects(t *testing.T) {
	t.Parallel()
	pgtest.Long(t, "it writes thousands of messages")
	url := pgtest.URL(t)
	var pools [2]*postgres.DB // the processor's has one session, which keeps its plans
	for i, most := range []int32{10, 1} {
		var err error
		if pools[i], err = postgres.Open(t.Context(), url, postgres.Options{AllowUnsafeDurability: true, AllowPlaintext: true, MaxConns: most}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pools[i].Close)
	}
	db := pools[0]
	write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
	p := processor(pools[1], func(ctx context.Context, _ inbox.Delivery) (inbox.Result, error) {
		<-ctx.Done()
		return inbox.Complete, ctx.Err()
	})
	p.Concurrency, p.Drain = 1, time.Millisecond
	stop := start(t, p)
	await(t, db, `select idx_scan > 0 from pg_stat_user_indexes where indexrelname = 'inbox_due'`)
	stop()
	const backlog = 3000
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		select 'r', n, n, 't', '', '{}', '' from generate_series(1, $1::int) n`, backlog)
	stop = start(t, p)
	await(t, db, `select bool_or(status = 'running') from inbox`)
	stop()
	pools[1].Close() // a session that ends has told what it read
	await(t, db, `select n_tup_upd >= 1 from pg_stat_user_tables where relname = 'inbox'`)
	var read int64
	if err := db.QueryRow(t.Context(), `select idx_tup_read from pg_stat_user_indexes where indexrelname = 'inbox_due'`).Scan(&read); err != nil {
		t.Fatal(err)
	}
	if read > 100 {
		t.Errorf("claiming a message read %d entries of what is due", read)
	}
}

func TestReceivingReadsNoMoreAsTheInboxGrows(t *testing.T) {
	t.Parallel()
	pgtest.Long(t, "it writes thousands of messages")
	url := pgtest.URL(t)
	db, err := postgres.Open(t.Context(), url, postgres.Options{
		AllowUnsafeDurability: true, AllowPlaintext: true, Settings: outbox.SessionSettings(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	const messages = 3000
	write(t, db, `insert into outbox (topic, message_id, payload, metadata)
		select 't', 'm' || n, '', '{}' from generate_series(1, $1::int) n`, messages)
	conns := stdlib.OpenDBFromPool(db.Pool())
	t.Cleanup(func() { _ = conns.Close() })
	log := slog.New(slog.DiscardHandler)
	subscriber := outbox.NewSubscriber(conns, "g", log)
	router, err := message.NewRouter(message.RouterConfig{}, outbox.Logger(log))
	if err != nil {
		t.Fatal(err)
	}
	router.AddConsumerHandler("h", "t", subscriber, outbox.ByPage(log, inbox.Receive(func(*message.Message) inbox.Envelope {
		return inbox.Envelope{Receivers: []string{"r"}, Type: "t"}
	})))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the router ended with %v", err)
		}
	})
	awaitAll(t, db)
	await(t, db, `select n_tup_ins >= 3000 from pg_stat_user_tables where relname = 'inbox'`)
	var read int64
	if err := db.QueryRow(t.Context(), `select seq_tup_read from pg_stat_user_tables where relname = 'inbox'`).Scan(&read); err != nil {
		t.Fatal(err)
	}
	if read > 0 {
		t.Errorf("receiving %d messages read %d rows of the inbox in sequence", messages, read)
	}
}

// TestReceivingReadsNoMoreBehindABacklogThatNobodyCounted: that of a server that was
// just restored or upgraded, of which the planner knows nothing yet.
func TestReceivingReadsNoMoreBehindABacklogThatNobodyCounted(t *testing.T) {
	t.Parallel()
	pgtest.Long(t, "it writes thousands of messages")
	db := pgtest.Open(t)
	write(t, db, `alter table inbox set (autovacuum_enabled = off)`)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		select 'r', 'open' || n, lpad(n::text, 36, '0'), 't', '', '{}', '' from generate_series(1, 24000) n`)
	const messages = 50
	for i := range messages {
		accept(t, db, inbox.Message{ID: strconv.Itoa(i)})
	}
	db.Pool().Reset()
	await(t, db, `select n_tup_ins >= 24050 from pg_stat_user_tables where relname = 'inbox'`)
	var read int64
	if err := db.QueryRow(t.Context(), `select sum(idx_tup_read) from pg_stat_user_indexes where relname = 'inbox'`).Scan(&read); err != nil {
		t.Fatal(err)
	}
	if read > 20*messages {
		t.Errorf("receiving %d messages read %d entries of indexes", messages, read)
	}
}

// A message that is new to a key reads two entries along it, the oldest before and
// after it is locked, and one by number, to lock it. A repeated one reads one by
// number. That holds whatever lies in the inbox and however many wait behind the same
// key.
func TestAcceptingReadsNoMoreAsTheInboxGrows(t *testing.T) {
	t.Parallel()
	pgtest.Long(t, "it writes thousands of messages")
	db := pgtest.Open(t)
	write(t, db, `analyze inbox`) // it is empty: what is planned now is kept
	for range 10 {
		accept(t, db, inbox.Message{ID: "early", OrderingKey: "early"})
	}
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence)
		select 'r', 'old' || n, 'k', 't', '', '{}', '', 'done', 0 from generate_series(1, 20000) n`)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		select 'r', 'open' || n, 'zz' || n, 't', '', '{}', '' from generate_series(1, 20000) n`)
	waits(t, db, "waiting")
	const messages = 1000
	for range 2 {
		for i := range messages {
			accept(t, db, note(strconv.Itoa(i), "x"))
			accept(t, db, inbox.Message{ID: "own" + strconv.Itoa(i)}) // of a key of its own
		}
	}
	if !isDue(t, db, "waiting") {
		t.Error("nobody woke the key")
	}
	// What a session did is counted when it rests or ends.
	db.Pool().Reset()
	await(t, db, `select n_tup_ins + n_tup_upd >= 44000 from pg_stat_user_tables where relname = 'inbox'`)
	var inSequence, alongKeys, byID, pages int64
	err := db.QueryRow(t.Context(), `
select (select seq_tup_read from pg_stat_user_tables where relname = 'inbox'),
       (select idx_tup_read from pg_stat_user_indexes where indexrelname = 'inbox_open_by_key'),
       (select idx_tup_read from pg_stat_user_indexes where indexrelname = 'inbox_pkey'),
       (select idx_blks_hit + idx_blks_read from pg_statio_user_indexes where indexrelname = 'inbox_open_by_key')`).
		Scan(&inSequence, &alongKeys, &byID, &pages)
	if err != nil {
		t.Fatal(err)
	}
	// As many are new to the key of the one that waits, and twice as many are repeated.
	// The one that waits has been written three times: while an older snapshot is
	// about, as that of an analyze, the dead entries of it are read as well. Few are
	// those of the early ones.
	const versions, few = 3, 50
	if inSequence > 0 || alongKeys > 2*versions*messages+few || byID > (versions+2)*messages+few {
		t.Errorf("twice %d messages, twice: read %d rows in sequence, %d entries along keys, %d by id", messages, inSequence, alongKeys, byID)
	}
	// Some to write the 22,000 that are there, and some for each look.
	t.Logf("%d pages", pages)
	if most := int64(22000*5 + 4*messages*10); pages > most {
		t.Errorf("%d pages of the keys, want at most %d", pages, most)
	}
}
