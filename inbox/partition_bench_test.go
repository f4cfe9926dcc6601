package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// BenchmarkOtherPartition measures how long a message of one partition takes from its
// commit to the start of its handler: first alone, then while 100,000 messages of another
// partition are received and handled. The handlers of both take 10 ms.
func BenchmarkOtherPartition(b *testing.B) {
	const large, samples = 100_000, 300
	db, end := testdb.Example()
	defer end()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	started := make(chan time.Time, samples)
	p := processor(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
		if d.Partition == "small" {
			started <- time.Now()
		}
		<-time.After(10 * time.Millisecond)
		done := &pgx.Batch{}
		inbox.Done(done, d)
		return inbox.Completed, db.Commit(ctx, done)
	})
	p.Concurrency = 64
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	config := db.Pool().Config()
	maps.Copy(config.ConnConfig.RuntimeParams, outbox.SessionSettings())
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	conns := stdlib.OpenDBFromPool(pool)
	bell := make(chan struct{}, 1)
	subscriber := outbox.NewSubscriber(conns, p.Receiver, slog.New(slog.DiscardHandler), outbox.Options{
		Bell: bell, Listening: func() bool { return true }, Room: p.Room,
	})
	defer func() { _ = errors.Join(subscriber.Close(), conns.Close()) }()
	pages, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		b.Fatal(err)
	}
	handle := outbox.ByPage(slog.New(slog.DiscardHandler), p.Receive(envelope, nil))
	go func() {
		for m := range pages {
			_ = handle(m) // a page that fails is delivered again
			m.Ack()
		}
	}()
	post := func(messages ...outbox.Message) {
		batch := &pgx.Batch{}
		for _, m := range messages {
			if err := outbox.Append(batch, m); err != nil {
				b.Fatal(err)
			}
		}
		if err := db.Commit(ctx, batch); err != nil {
			b.Fatal(err)
		}
		select {
		case bell <- struct{}{}:
		default:
		}
	}
	p99 := func(name string) time.Duration {
		var took []time.Duration
		for n := range samples {
			began := time.Now()
			post(outbox.Message{Topic: topic, ID: fmt.Sprintf("%s-%d", name, n), Type: "t", OrderingKey: fmt.Sprintf("%s-%d", name, n), Partition: "small"})
			took = append(took, await.Receive(b, "the handler", started).Sub(began))
		}
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	for b.Loop() {
		idle := p99("idle")
		for n := 0; n < large; n += 500 {
			page := make([]outbox.Message, 500)
			for i := range page {
				id := fmt.Sprint("large-", n+i)
				page[i] = outbox.Message{Topic: topic, ID: id, Type: "t", OrderingKey: id, Partition: "large"}
			}
			post(page...)
		}
		beside := p99("beside")
		b.ReportMetric(float64(idle.Microseconds())/1000, "idle-p99-ms")
		b.ReportMetric(float64(beside.Microseconds())/1000, "beside-p99-ms")
		b.ReportMetric(float64(beside)/float64(idle), "ratio")
	}
}
