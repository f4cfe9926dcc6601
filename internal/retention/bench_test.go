package retention_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/retention"
	"github.com/payonce/payonce/migrations"
)

// BenchmarkAcceptBesideTheJanitor accepts charges while a million rows expire,
// and reports accepting with the janitor at work against accepting without, by
// turns of some seconds, until the rows are gone. It runs for minutes:
//
//	go test ./internal/retention -run '^$' -bench Janitor -benchtime 1x -timeout 30m
//
// Behind a long transaction, such as a backup, what was deleted cannot be
// vacuumed, and each commit of the janitor meets what those before it left.
func BenchmarkAcceptBesideTheJanitor(b *testing.B) {
	for _, test := range []struct {
		name string
		long bool
	}{{"alone", false}, {"behind_a_long_transaction", true}} {
		b.Run(test.name, func(b *testing.B) {
			for range b.N {
				acceptBesideTheJanitor(b, test.long)
			}
		})
	}
}

const (
	benchClients = 16
	benchTurn    = 5 * time.Second
	benchRows    = 1_000_000
)

func acceptBesideTheJanitor(b *testing.B, long bool) {
	b.Helper()
	db := benchDatabase(b)
	if long {
		tx, err := db.Pool().BeginTx(b.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(b.Context())) }()
		if _, err := tx.Exec(b.Context(), `set idle_in_transaction_session_timeout = 0`); err != nil {
			b.Fatal(err)
		}
	}
	load := newLoad(b, db)
	defer load.stop()
	var swept atomic.Int64
	janitor := &retention.Janitor{
		DB: db, Log: slog.New(slog.DiscardHandler), Name: "bench",
		OutboxRetention: 24 * time.Hour, InboxRetention: 168 * time.Hour,
		Swept: func(_ string, rows int64) { swept.Add(rows) },
	}

	load.turn() // to warm up
	var without, with turns
	var busy time.Duration
	// A commit that a turn's end cuts off is not counted.
	for swept.Load() < benchRows*99/100 {
		without.add(load.turn())
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan struct{})
		began := time.Now()
		go func() { janitor.Run(ctx); close(ended) }()
		with.add(load.turn())
		cancel()
		<-ended
		busy += time.Since(began)
		b.Logf("%d swept after %v", swept.Load(), busy.Round(time.Second))
	}
	without.add(load.turn())

	b.ReportMetric(0, "ns/op")
	b.ReportMetric(without.rate(), "accepts/s_without")
	b.ReportMetric(with.rate(), "accepts/s_with")
	b.ReportMetric(with.rate()/without.rate(), "rate_ratio")
	b.ReportMetric(without.percentile(50), "p50_ms_without")
	b.ReportMetric(with.percentile(50), "p50_ms_with")
	b.ReportMetric(without.percentile(99), "p99_ms_without")
	b.ReportMetric(with.percentile(99), "p99_ms_with")
	b.ReportMetric(with.percentile(99)/without.percentile(99), "p99_ratio")
	b.ReportMetric(float64(swept.Load())/busy.Seconds(), "rows_swept/s")
}

// benchDatabase forces every commit to disk and holds a million rows that have
// expired: of keys with their answers, of the outbox, and of the inbox.
func benchDatabase(b *testing.B) *postgres.DB {
	b.Helper()
	server, err := local.Start(b.Context(), local.Options{Fsync: true, Settings: map[string]string{"max_wal_size": "4GB"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Close(); err != nil {
			b.Error(err)
		}
	})
	if err := server.CreateDatabase(b.Context(), "bench"); err != nil {
		b.Fatal(err)
	}
	if err := migrations.Up(b.Context(), server.URL("bench")); err != nil {
		b.Fatal(err)
	}
	db, err := postgres.Open(b.Context(), server.URL("bench"), postgres.Options{StatementTimeout: 10 * time.Minute, MaxConns: 24})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(db.Close)
	for _, sql := range []string{
		`insert into merchants (merchant_id) values ('acme')`,
		`insert into idempotency_keys (scope, operation, key, fingerprint, request, status_code, content_type, body, expires_at)
			select 'acme', 'POST /v1/charges', gen_random_uuid()::text, sha256('x'), convert_to(repeat('x', 150), 'UTF8'), 202, 'application/json',
			       convert_to(repeat('x', 350), 'UTF8'), clock_timestamp() - interval '1 day' + n * interval '50 ms'
			  from generate_series(1, 300000) n`,
		`insert into outbox (topic, message_id, payload, metadata, created_at)
			select 'charges', gen_random_uuid()::text, convert_to(repeat('x', 150), 'UTF8'), '{"type": "charge.requested.v1", "ordering_key": "ch_x"}',
			       clock_timestamp() - interval '3 days' + n * interval '50 ms'
			  from generate_series(1, 350000) n`,
		`insert into outbox_offsets select topic, 'inbox', max(transaction_id), max("offset") from outbox group by topic`,
		`insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence, finished_at, received_in)
			select 'fulfillment', gen_random_uuid()::text, 'ch_' || n, 'charge.requested.v1', convert_to(repeat('x', 150), 'UTF8'), '{"type": "charge.requested.v1"}',
			       sha256('x'), 'done', 0, clock_timestamp() - interval '9 days' + n * interval '50 ms', '3'
			  from generate_series(1, 350000) n`,
		`analyze`,
		`checkpoint`,
	} {
		if _, err := db.Pool().Exec(b.Context(), sql); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	return db
}

// load accepts charges, by some clients at a time.
type load struct {
	stop    func()
	mu      sync.Mutex
	latency []time.Duration // of this turn
	failed  atomic.Pointer[error]
	b       *testing.B
}

func newLoad(b *testing.B, db *postgres.DB) *load {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	l := &load{b: b}
	take := &intake.Intake{DB: db, Keys: idempotency.Receiver{Retention: 168 * time.Hour}}
	var clients sync.WaitGroup
	var n atomic.Int64
	for range benchClients {
		clients.Go(func() {
			for ctx.Err() == nil {
				name := fmt.Sprint("bench-", n.Add(1))
				began := time.Now()
				_, err := take.AcceptCharge(ctx, intake.Account{MerchantID: "acme", FeeBasisPoints: 300, Notify: true}, intake.Request{
					Key:     idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: name},
					Request: idempotency.Request{Fingerprint: idempotency.Fingerprint([]byte(name))},
					ID:      name,
				}, intake.Charge{OrderID: name, Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa"})
				if err != nil {
					if ctx.Err() == nil {
						l.failed.Store(&err)
					}
					return
				}
				l.mu.Lock()
				l.latency = append(l.latency, time.Since(began))
				l.mu.Unlock()
			}
		})
	}
	l.stop = func() { cancel(); clients.Wait() }
	return l
}

// turn is what was accepted from now on, for benchTurn.
func (l *load) turn() turns {
	l.b.Helper()
	l.mu.Lock()
	l.latency = nil
	l.mu.Unlock()
	began := time.Now()
	<-time.After(benchTurn)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.failed.Load(); err != nil {
		l.b.Fatal(*err)
	}
	return turns{latency: l.latency, took: time.Since(began)}
}

type turns struct {
	latency []time.Duration
	took    time.Duration
}

func (t *turns) add(more turns) {
	t.latency = append(t.latency, more.latency...)
	t.took += more.took
}

func (t *turns) rate() float64 { return float64(len(t.latency)) / t.took.Seconds() }

func (t *turns) percentile(p int) (ms float64) {
	slices.Sort(t.latency)
	return float64(t.latency[(len(t.latency)-1)*p/100].Microseconds()) / 1000
}
