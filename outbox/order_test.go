package outbox_test

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/testdb"
)

// Transaction ids are numbers. Sorted as text, 100 comes before 98, and a page
// that ends there moves the offset past messages that nobody has received.
func TestPagesFollowTransactionIDsAsNumbers(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	const oldest, newest = 2, 400 // over two pages, and across 9|10 and 99|100
	b := &pgx.Batch{}
	for xid := newest; xid >= oldest; xid-- {
		for _, id := range []string{strconv.Itoa(xid), strconv.Itoa(xid) + " again"} {
			b.Queue(`insert into outbox (topic, transaction_id, message_id, payload, metadata) values ($1, $2::text::xid8, $3, '{}', '{}')`,
				topic, strconv.Itoa(xid), id)
		}
	}
	must(t, db.Commit(t.Context(), b))
	r := read(t, db, "g")
	for xid := oldest; xid <= newest; xid++ {
		want := []string{strconv.Itoa(xid), strconv.Itoa(xid) + " again"}
		if diff := cmp.Diff(want, r.take(t, 2)); diff != "" {
			t.Fatalf("messages of a transaction (-want +got):\n%s", diff)
		}
	}
}
