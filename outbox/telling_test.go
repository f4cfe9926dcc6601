package outbox_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/stdlib"

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
			for page := 0; ; page++ {
				select {
				case _, open := <-pages: // and is not acknowledged
					if open && page == 0 {
						if err := stop(subscriber, cancel); err != nil {
							t.Fatal(err)
						}
						continue
					}
					if open {
						t.Errorf("page %d has come", page+1)
					}
				case <-time.After(patience):
					t.Fatal("no page, and no end")
				}
				break
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
	t.Parallel()
	url := pgtest.URL(t)
	db, err := postgres.Open(t.Context(), url, postgres.Options{LockTimeout: -1, StatementTimeout: patience, AllowUnsafeDurability: true})
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
	waits := func() (waits bool) {
		err := db.QueryRow(t.Context(), `
select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())`).Scan(&waits)
		if err != nil {
			t.Error(err)
		}
		return waits
	}
	eventually(t, "it waits for the lock", waits)
	closed := make(chan error, 1)
	go func() { closed <- subscriber.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("it is not closed")
	}
	if !waits() {
		t.Error("whoever subscribes did not wait any more")
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-subscribed; err != nil {
		t.Error(err)
	}
	if err := conns.Close(); err != nil {
		t.Error(err)
	}
}
