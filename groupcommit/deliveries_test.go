package groupcommit_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// The ends of several deliveries are one statement. It is of the inbox, and is tested here
// since only a group commit sends it.

// held are messages of the inbox, numbered from 1, each with its holder's fence. They
// lie in the table from the last to the first.
func held(t *testing.T, o postgres.Options, fences ...int64) *postgres.DB {
	t.Helper()
	o.Writes = declared()
	db, _ := effects(t, o)
	claimedUnder(t, db, fences...)
	return db
}

func claimedUnder(t *testing.T, db *postgres.DB, fences ...int64) {
	t.Helper()
	if _, err := db.Pool().Exec(context.WithoutCancel(t.Context()), `
insert into inbox
       (id, receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, first, holder)
overriding system value
select n, 'r', n, n, 't', '', '{}', '', 'running', fence, true, 'h'
  from unnest($1::bigint[]) with ordinality as f (fence, n)
 order by n desc`, fences); err != nil {
		t.Fatal(err)
	}
}

// end queues the end of a delivery as the inbox does; only the inbox can make a delivery.
func end(b *pgx.Batch, id, fence int64) {
	b.Queue(inbox.Writes()[1].SQL, id, fence, strconv.FormatInt(id, 10), "h")
}

// ending has an effect and ends a delivery.
func ending(effect int, id, fence int64) *pgx.Batch {
	b := batch(effect)
	end(b, id, fence)
	return b
}

func want(t *testing.T, db *postgres.DB, sql string, want ...string) {
	t.Helper()
	testrun.Same(t, sql, want, testdb.All[string](t, db, sql))
}

// Of two holders of one message in a group commit the older one alone is refused.
func TestDeliveries_refuseTheOlderOfTwoHolders(t *testing.T) {
	t.Parallel()
	db := held(t, postgres.Options{}, 2, 2, 2)
	errs := together(t, db.Committer(), committing(db, ending(1, 1, 2), ending(99, 2, 1), ending(2, 2, 2), ending(3, 3, 2))...)
	if err := errs[1]; !inbox.IsLost(err) {
		t.Errorf("it has the error %v", err)
	}
	wantNoErrors(t, slices.Delete(errs, 1, 2))
	wantStored(t, db, 1, 2, 3)
	want(t, db, `select id::text from inbox where status = 'done' and done_fence = fence and finished_at is not null order by id`, "1", "2", "3")
}

// A group commit locks articles and then messages, each by key, whatever the order in which its batches came,
// and also where the table is read as it lies, which is from the last to the first. So two of them that meet
// in several rows do not deadlock.
func TestGroupCommit_locksInOneOrder(t *testing.T) {
	t.Parallel()
	db := held(t, postgres.Options{
		Settings: map[string]string{"enable_indexscan": "off"}, LockTimeout: time.Hour, StatementTimeout: time.Hour,
	}, 1, 1, 1, 1, 1)
	testdb.Exec(t, db.Pool(), `insert into merchants (merchant_id) values ('acme'), ('globex')`)
	testdb.Exec(t, db.Pool(), `insert into stock (merchant_id, sku, supplied, available) select 'acme', n, 9, 9 from generate_series(1, 5) n union all select 'globex', '1', 9, 9`)
	db.Committer().WaitForLocks()
	article := testdb.Begin(t, db.Pool(), `select from stock where sku = '2' for no key update`)
	message := testdb.Begin(t, db.Pool(), `select from inbox where id = 3 for no key update`)
	var batches []*pgx.Batch
	for _, n := range []int{5, 3, 1, 4, 2} {
		b := ending(n, int64(n), 1)
		if n == 5 {
			b.Queue(takeStock, "globex", "1")
		}
		b.Queue(takeStock, "acme", strconv.Itoa(n))
		batches = append(batches, b)
	}
	results, release := queueUnits(t, db.Committer(), committing(db, batches...)...)
	release()
	testrun.Blocked(t, db, 1)
	want(t, db, `select merchant_id || sku from stock order by 1 for no key update skip locked`, "acme3", "acme4", "acme5", "globex1")
	testdb.Must(t, article.Commit(t.Context()))
	testrun.Row(t, db, `select count(*) = 0 from (select from stock for no key update skip locked) free`)
	testrun.Blocked(t, db, 1)
	want(t, db, `select id::text from inbox order by id for no key update skip locked`, "4", "5")
	testdb.Must(t, message.Commit(t.Context()))
	for _, result := range results {
		testdb.Must(t, <-result)
	}
	want(t, db, `select count(distinct cmin::text)::text from inbox where status = 'done'`, "1") // one statement ended all of them
	want(t, db, `select merchant_id || sku from stock where reserved = 1 order by 1`, "acme1", "acme2", "acme3", "acme4", "acme5", "globex1")
}

// Of two messages of one id in a group commit the second is known: counted, or a dead letter.
func TestDeliveries_ofOneID(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared()})
	message := func(key, payload string) *pgx.Batch {
		b := &pgx.Batch{}
		inbox.Append(b, "r", inbox.Message{ID: "m" + key[:1], OrderingKey: key, Payload: []byte(payload)})
		return b
	}
	wantNoErrors(t, together(t, db.Committer(), committing(db, message("a", "1"), message("a", "1"), message("b", "1"), message("b", "2"))...))
	wantNoErrors(t, together(t, db.Committer(), committing(db, message("c1", "1"), message("c2", "2"))...))
	want(t, db, `select format('%s %s %s', split_part(message_id, ':', 1), status, duplicates) from inbox order by status desc, message_id`,
		"ma pending 1", "mb pending 0", "mc pending 0", "unreadable dead 0", "unreadable dead 0")
}
