package outbox_test

import (
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/outbox"
)

// Transaction ids are numbers. Sorted as text, 100 comes before 98, and a page
// that ends there moves the offset past messages that nobody has received.
func TestPagesFollowTransactionIDsAsNumbers(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	const oldest, newest = 2, 400 // over four pages, and across 9|10 and 99|100
	b := &pgx.Batch{}
	for xid := newest; xid >= oldest; xid-- {
		b.Queue(`insert into outbox (topic, transaction_id, message_id, payload, metadata) values ('t', $1::text::xid8, $1, '{}', '{}')`,
			strconv.Itoa(xid))
	}
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	conns := stdlib.OpenDBFromPool(db.Pool())
	t.Cleanup(func() { _ = conns.Close() })
	subscriber, err := outbox.NewSubscriber(conns, "g", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = subscriber.Close() })
	messages, err := subscriber.Subscribe(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	for xid := oldest; xid <= newest; xid++ {
		select {
		case m := <-messages:
			if m.UUID != strconv.Itoa(xid) {
				t.Fatalf("after transaction %d came %s", xid-1, m.UUID)
			}
			m.Ack()
		case <-time.After(time.Minute):
			t.Fatal(fmt.Errorf("the message of transaction %d never came", xid))
		}
	}
}
