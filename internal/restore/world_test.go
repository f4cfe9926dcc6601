package restore_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/outbox"
)

const topic = "letters"

// polls counts the reads of a subscriber.
type polls struct{ atomic.Int64 }

func (p *polls) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "from outbox_offsets") {
		p.Add(1)
	}
	return ctx
}

func (*polls) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// reader is a subscriber of a group and the messages of the page that it reads.
type reader struct {
	pages <-chan *message.Message
	left  *[]string
	polls *polls
	stop  func()
}

func read(t *testing.T, db *postgres.DB) reader {
	t.Helper()
	counted := &polls{}
	config := db.Pool().Config()
	config.ConnConfig.Tracer = counted
	maps.Copy(config.ConnConfig.RuntimeParams, outbox.SessionSettings())
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	conns := stdlib.OpenDBFromPool(pool)
	subscriber := outbox.NewSubscriber(conns, "g", slog.New(slog.DiscardHandler), outbox.Options{})
	pages, err := subscriber.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	stop := func() {
		if err := errors.Join(subscriber.Close(), conns.Close()); err != nil {
			t.Error(err)
		}
		pool.Close()
	}
	t.Cleanup(stop)
	return reader{pages: pages, left: &[]string{}, polls: counted, stop: stop}
}

// take acknowledges pages until it has n messages, and returns their ids.
func (r reader) take(t *testing.T, n int) []string {
	t.Helper()
	for len(*r.left) < n {
		page := await.Receive(t, "a page", r.pages)
		messages, err := outbox.Messages(page)
		if err != nil {
			t.Fatal(err)
		}
		*r.left = append(*r.left, named(messages)...)
		page.Ack()
	}
	taken := (*r.left)[:n]
	*r.left = (*r.left)[n:]
	return taken
}

func (r reader) wantNext(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.take(t, len(want))); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// wantNone wants no message from several reads.
func (r reader) wantNone(t *testing.T) {
	t.Helper()
	before := r.polls.Load()
	await.True(t, "the subscriber has read", func() bool {
		select {
		case page := <-r.pages:
			t.Fatalf("page %s came", page.UUID)
		default:
		}
		return r.polls.Load() >= before+3
	})
	if len(*r.left) > 0 {
		t.Errorf("messages %v came", *r.left)
	}
}

func named(messages []*message.Message) []string {
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.UUID
	}
	return ids
}

// begin opens a transaction that has an id.
func begin(t *testing.T, db *postgres.DB) pgx.Tx {
	t.Helper()
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	if _, err := tx.Exec(t.Context(), `select pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	return tx
}
