package inbox_test

import (
	"context"
	"testing"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// What was parked stays for as long as nobody decides. It must cost those that
// are not parked nothing, whether it lies under their key or under others.
func TestAClaimReadsNoMoreBehindParkedMessages(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not run in short mode: it writes thousands of messages")
	}
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
			db, its := open(t, url, postgres.Options{}), open(t, url, postgres.Options{})
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
			if read > 10*young*young {
				t.Errorf("%d messages were claimed behind %d parked ones, and %d entries read", young, parked, read)
			}
			t.Logf("%d entries read", read)
		})
	}
}
