package inbox_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// What was parked stays for as long as nobody decides. It must cost those that
// are not parked nothing, whether it lies under their key or under others.
func TestAClaimReadsNoMoreBehindParkedMessages(t *testing.T) {
	t.Parallel()
	pgtest.Long(t, "it writes thousands of messages")
	const parked, young = 5000, 200
	for name, test := range map[string]struct {
		policy inbox.Parked
		key    string // of the young ones
	}{
		"of other keys":                   {inbox.Block, "n"},
		"of its key, where they may pass": {inbox.Pass, "'hot'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.URL(t)
			looks := &looks{} // a busy machine has more of them
			db, its := open(t, url, postgres.Options{}), open(t, url, postgres.Options{Tracer: looks})
			write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status)
				select 'r', 'parked' || n, 'hot', 't', '', '{}', '', 'dead' from generate_series(1, $1::int) n`, parked)
			write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
				select 'r', n, `+test.key+`, 't', '', '{}', '' from generate_series(1, $1::int) n`, young)
			handle := func(context.Context, inbox.Delivery) (inbox.Result, error) { return inbox.Complete, nil }
			p := processor(its, handle)
			p.Policy.Parked = test.policy
			stop := start(t, p)
			await(t, db, `select count(*) = 200 from inbox where status = 'done'`)
			stop()
			its.Close() // a session that ends has told what it read
			await(t, db, `select n_tup_upd >= 400 from pg_stat_user_tables where relname = 'inbox'`)
			const entries = `
select sum(idx_tup_read)
  from pg_stat_user_indexes
 where indexrelname in ('inbox_due', 'inbox_suspects', 'inbox_open_by_key', 'inbox_parked_by_key')`
			var read int64
			if err := db.QueryRow(t.Context(), entries).Scan(&read); err != nil {
				t.Fatal(err)
			}
			// Those of one key wait for each other: half of them are due at each look.
			if read > 10*young*looks.claims.Load() {
				t.Errorf("%d messages were claimed behind %d parked ones in %d looks, and %d entries read", young, parked, looks.claims.Load(), read)
			}
			t.Logf("%d entries read in %d looks", read, looks.claims.Load())
		})
	}
}

// looks counts claims, those that take nothing too.
type looks struct{ claims atomic.Int64 }

func (l *looks) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	for _, q := range d.Batch.QueuedQueries {
		if strings.Contains(q.SQL, "with accused as") {
			l.claims.Add(1)
		}
	}
	return ctx
}

func (l *looks) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (l *looks) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (l *looks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (l *looks) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
