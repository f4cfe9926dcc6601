package outbox_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/outbox"
)

// TestTelling: who is told of a page finds it committed, and is told once.
func TestTelling(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	told := make(chan int, 100)
	conns := stdlib.OpenDBFromPool(db.Pool())
	subscriber, err := outbox.NewSubscriberTelling(conns, "g", slog.New(slog.DiscardHandler), func() {
		var received int
		err := db.QueryRow(t.Context(), `
select count(*)
  from outbox m,
       outbox_offsets o
 where (m.transaction_id, m."offset") <= (o.transaction_id, o."offset")`).Scan(&received)
		if err != nil {
			t.Error(err)
		}
		told <- received
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := subscriber.Close(); err != nil {
			t.Error(err)
		}
		if err := conns.Close(); err != nil {
			t.Error(err)
		}
	})
	pages, err := subscriber.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for page := 1; page <= 3; page++ {
		publish(t, db, "a", "b")
		select {
		case m := <-pages:
			m.Ack()
		case <-time.After(patience):
			t.Fatal("no page")
		}
		select {
		case received := <-told:
			if received != 2*page {
				t.Errorf("told of page %d when %d messages were received", page, received)
			}
		case <-time.After(patience):
			t.Fatalf("not told of page %d", page)
		}
	}
	if n := len(told); n > 0 {
		t.Errorf("told %d times more than there were pages", n)
	}
}
