package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/outbox"
)

// TestTelling: who is told of a page finds it committed, and is told once.
func TestTelling(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	told := make(chan int, 100)
	conns := stdlib.OpenDBFromPool(db.Pool())
	subscriber := outbox.NewSubscriberTelling(conns, "g", slog.New(slog.DiscardHandler), func() {
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
		await.Receive(t, "a page", pages).Ack()
		if received := await.Receive(t, "word of a page", told); received != 2*page {
			t.Errorf("told of page %d when %d messages were received", page, received)
		}
	}
	if n := len(told); n > 0 {
		t.Errorf("told %d times more than there were pages", n)
	}
}

// TestTellingOfTheLastPage: also who stops reading is told of the page that was read.
func TestTellingOfTheLastPage(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(message.Subscriber, context.CancelFunc) error{
		"by closing":     func(s message.Subscriber, _ context.CancelFunc) error { return s.Close() },
		"by its context": func(_ message.Subscriber, cancel context.CancelFunc) error { cancel(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			publish(t, db, "a", "b")
			told := make(chan bool, 100)
			conns := stdlib.OpenDBFromPool(db.Pool())
			subscriber := outbox.NewSubscriberTelling(conns, "g", slog.New(slog.DiscardHandler), func() { told <- true })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pages, err := subscriber.Subscribe(ctx, topic)
			if err != nil {
				t.Fatal(err)
			}
			if await.Receive(t, "a page", pages) == nil { // and it is not acknowledged
				t.Fatal("the subscriber has ended")
			}
			if err := stop(subscriber, cancel); err != nil {
				t.Fatal(err)
			}
			if page := await.Receive(t, "the end", pages); page != nil {
				t.Error("another page has come")
			}
			if n := len(told); n != 1 {
				t.Errorf("told %d times of one page", n)
			}
			if err := errors.Join(subscriber.Close(), conns.Close()); err != nil {
				t.Fatal(err)
			}
			if _, err := subscriber.Subscribe(t.Context(), topic); !errors.Is(err, wsql.ErrSubscriberClosed) {
				t.Errorf("a closed subscriber subscribes: %v", err)
			}
		})
	}
}

// TestClosingWaitsForNoSubscription: a database that does not answer keeps nobody from
// closing.
func TestClosingWaitsForNoSubscription(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	url := pgtest.URL(t)
	db, err := postgres.Open(t.Context(), url, postgres.Options{LockTimeout: -1, StatementTimeout: await.Stall, AllowUnsafeDurability: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	lock, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := lock.Exec(t.Context(), `lock table outbox_offsets in exclusive mode`); err != nil {
		t.Fatal(err)
	}
	conns := stdlib.OpenDBFromPool(db.Pool())
	subscriber := outbox.NewSubscriber(conns, "g", slog.New(slog.DiscardHandler))
	subscribed := make(chan error, 1)
	go func() {
		_, err := subscriber.Subscribe(t.Context(), topic)
		subscribed <- err
	}()
	await.Blocked(t, db, 1)
	closed := make(chan error, 1)
	go func() { closed <- subscriber.Close() }()
	if err := await.Receive(t, "the subscriber's end", closed); err != nil {
		t.Error(err)
	}
	await.Blocked(t, db, 1) // whoever subscribes waits still
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := await.Receive(t, "the subscription", subscribed); err != nil {
		t.Error(err)
	}
	if err := conns.Close(); err != nil {
		t.Error(err)
	}
}
