package outbox_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// Transaction ids are numbers. Sorted as text, 100 comes before 98, and a page
// that ends there moves the offset past messages that no group has received.
func TestPages_areOrderedByTransactionIDsAsNumbers(t *testing.T) {
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
	testdb.Must(t, db.Commit(t.Context(), b))
	r := read(t, db, "g")
	for xid := oldest; xid <= newest; xid++ {
		want := []string{strconv.Itoa(xid), strconv.Itoa(xid) + " again"}
		if diff := cmp.Diff(want, r.take(t, 2)); diff != "" {
			t.Fatalf("messages of a transaction (-want +got):\n%s", diff)
		}
	}
}

// The SQL that Schema's comment gives for a database without payonce's other tables.
func TestRepair_makesARestoredOutboxReadable(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, "m1")
	r := read(t, db, "g")
	r.wantNext(t, "m1")
	publish(t, db, "m2", "m3")
	r.wantNext(t, "m2", "m3")
	write(t, db, `update numbering_mark set written_in = '7'`)                         // as a dump leaves it
	write(t, db, `update outbox set transaction_id = '99999' where message_id = 'm1'`) // and another server's numbers
	publish(t, db, "m4")
	r.wantNone(t)
	_, repair, _ := strings.Cut(outbox.Schema(), "--   begin;\n")
	repair, _, _ = strings.Cut(repair, "--   commit;\n")
	testdb.Must(t, pgx.BeginFunc(t.Context(), db.Pool(), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), strings.ReplaceAll(repair, "--   ", ""), pgx.QueryExecModeSimpleProtocol)
		return err
	}))
	publish(t, db, "m5")
	r.wantNext(t, "m1", "m2", "m3", "m4", "m5")
}
