package defects_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// payments is the effect that must happen once. Nothing about the table makes it
// so: what guards it is what is tested.
const payments = `
create table payments (
  message_id text   not null,
  amount     bigint not null check (amount > 0)
)`

const pay = `
insert into payments
       (message_id, amount)
values ($1, 100)`

// errBroken is what a handler answers that has nothing to do with SQL.
var errBroken = errors.New("the printer is on fire")

// miniature is an empty database with the tables of a document.
func miniature(t *testing.T, tables ...string) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(t.Context(), pgtest.Empty(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	for _, table := range tables {
		if _, err := db.Exec(t.Context(), table); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// ours is a database as payonce has it, beside it the table of payments.
func ours(t *testing.T) *postgres.DB {
	t.Helper()
	db := pgtest.Open(t)
	write(t, db, payments)
	return db
}

func write(t *testing.T, db *postgres.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Pool().Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// wantCount checks the one number that a query finds.
func wantCount(t *testing.T, q postgres.Querier, what string, want int, sql string, args ...any) {
	t.Helper()
	var got int
	if err := q.QueryRow(t.Context(), sql, args...).Scan(&got); err != nil || got != want {
		t.Errorf("%s: %d, want %d: %v", what, got, want, err)
	}
}

func wantPayments(t *testing.T, q postgres.Querier, want int) {
	t.Helper()
	wantCount(t, q, "payments", want, `select count(*) from payments`)
}

// process runs one holder of messages to its end, which may be its death.
func process(run func()) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() { defer close(done); run() }()
	return done
}

// die ends a process where it stands: nothing behind it runs.
func die() { runtime.Goexit() }

// sqlState is the SQLSTATE of an error, "" if it has none.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// receiver is the name under which ours receives in these tests.
const receiver = "payments"

// worker is one of ours. Its lease and backoff are so long that nothing happens
// by the clock.
func worker(db *postgres.DB, handle inbox.Handler) *inbox.Processor {
	return &inbox.Processor{
		DB: db, Receiver: receiver, Holder: "test", Handle: handle, Concurrency: 1,
		Policy: inbox.Policy{
			Lease: time.Hour, MaxAttempts: 5, GiveUpAfter: time.Hour,
			BackoffBase: time.Hour, BackoffCap: time.Hour,
		},
		Poll: 5 * time.Millisecond, Drain: await.Stall, Log: slog.New(slog.DiscardHandler),
	}
}

// start runs a worker until the test ends.
func start(t *testing.T, p *inbox.Processor) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := process(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		await.Receive(t, "the worker's end", ended)
	})
}

// due makes what waits, or is leased to somebody silent, due now.
func due(t *testing.T, db *postgres.DB) {
	t.Helper()
	write(t, db, `update inbox set due_at = clock_timestamp() - interval '1 day' where status in ('pending', 'running')`)
}

// payAndFinish is the last commit of a handler of ours: the effect and the end
// of the delivery.
func payAndFinish(ctx context.Context, db *postgres.DB, d inbox.Delivery) (inbox.Result, error) {
	b := &pgx.Batch{}
	b.Queue(pay, d.ID)
	inbox.Done(b, d)
	return inbox.Completed, db.Commit(ctx, b)
}

// begin opens a transaction that ends with the test, if not earlier.
func begin(t *testing.T, db *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

// message is one whose payload and ordering key are its id.
func message(id string) inbox.Message {
	return inbox.Message{ID: id, Type: "pay.v1", OrderingKey: id, Payload: []byte(id)}
}

// deliver delivers messages to ours, in one commit.
func deliver(t *testing.T, db *postgres.DB, messages ...inbox.Message) {
	t.Helper()
	b := &pgx.Batch{}
	for _, m := range messages {
		if err := inbox.Accept(b, receiver, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}
