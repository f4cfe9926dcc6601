package defects_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

func TestMain(m *testing.M) { testrun.Main(m) }

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

// processed is the table in which a document marks the messages that it has taken.
const processed = `
create table processed_messages (
  message_id text primary key,
  status     text not null
)`

// errBroken is what a handler answers that has nothing to do with SQL.
var errBroken = errors.New("the printer is on fire")

// miniature is an empty database with the tables of a document.
func miniature(t *testing.T, tables ...string) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(t.Context(), testdb.Empty(t))
	must(t, err)
	t.Cleanup(db.Close)
	for _, table := range tables {
		exec(t, db, table)
	}
	return db
}

// exec runs a statement and returns how many rows it changed.
func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) int64 {
	t.Helper()
	tag, err := db.Exec(t.Context(), sql, args...)
	must(t, err)
	return tag.RowsAffected()
}

var must = testrun.Must

// wantError checks with which error something ends, nil for none.
func wantError(t *testing.T, what string, want, err error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s ends with %v, want %v", what, err, want)
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

// hold has a receiver take a message, and returns when its handler runs. finish lets the
// handler go on to its end, which may be its death, and waits until the receiver ends.
func hold(t *testing.T, receive func(handle func() error) error, end func() error) (finish func()) {
	t.Helper()
	begun, wake := make(chan struct{}), make(chan struct{})
	ended := process(func() {
		_ = receive(func() error { close(begun); <-wake; return end() })
	})
	await.Receive(t, "a holder", begun)
	return func() { close(wake); await.Receive(t, "a holder's end", ended) }
}

// process runs one holder of messages to its end, which may be its death.
func process(run func()) (ended <-chan struct{}) {
	done := make(chan struct{})
	go func() { defer close(done); run() }()
	return done
}

// What follows is how the tests from D8 on use payonce's packages.

// withPackages is a database with the tables of the packages, payments and others.
func withPackages(t *testing.T, tables ...string) *postgres.DB {
	t.Helper()
	db := testdb.Open(t)
	for _, table := range append(tables, payments) {
		exec(t, db.Pool(), table)
	}
	return db
}

// request asks for a payment, under a key of its tenant.
type request struct {
	tenant, key string
	amount      int
}

func identify(r request) (idempotency.Key, idempotency.Request, error) {
	_, input, err := idempotency.Content("pay.v1", r.amount)
	return idempotency.Key{Scope: r.tenant, Operation: "pay.v1", Value: r.key}, input, err
}

// once does the work of a request by idempotency.Once.
func once(ctx context.Context, db *postgres.DB, r request, work func(tx pgx.Tx) (receipt string, err error)) (o outcome) {
	key, input, err := identify(r)
	if err != nil {
		return outcome{err: err}
	}
	o.receipt, o.replayed, o.err = idempotency.Once(ctx, db.Pool(), key, input, idempotency.Options{},
		func(_ context.Context, tx pgx.Tx) (string, error) { return work(tx) })
	return o
}

// outcome is what the caller of once gets.
type outcome struct {
	receipt  string
	replayed bool
	err      error
}

// payOnce is once for a request whose work is its payment, and then what end does.
func payOnce(t *testing.T, db *postgres.DB, r request, end func() error) outcome {
	t.Helper()
	return once(t.Context(), db, r, func(tx pgx.Tx) (string, error) {
		_, err := tx.Exec(t.Context(), pay, r.key)
		if err == nil {
			err = end()
		}
		return "receipt of " + r.key, err
	})
}

// send is once for a request whose work is messages in the outbox.
func send(t *testing.T, db *postgres.DB, ids ...string) {
	t.Helper()
	must(t, once(t.Context(), db, request{key: "send"}, func(tx pgx.Tx) (_ string, err error) {
		for _, id := range ids {
			m := outbox.Message{Topic: "payments", ID: id, Type: "payment", OrderingKey: id, Payload: []byte(id)}
			err = errors.Join(err, outbox.Send(t.Context(), tx, m))
		}
		return "", err
	}).err)
}

// receive delivers the outbox to the inbox until the test ends. After handle, the inbox
// commits the payment of the message with its end.
func receive(t *testing.T, db *postgres.DB, handle func(d *inbox.Delivery) error) {
	t.Helper()
	p, err := inbox.New(inbox.Options{
		DB: db, Receiver: "payments", Concurrency: 4, Drain: await.Stall, Log: slog.New(slog.DiscardHandler),
		Policy: inbox.Policy{Lease: time.Hour, MaxAttempts: 9, GiveUpAfter: time.Hour, BackoffBase: 1, BackoffCap: 1},
		Handle: func(ctx context.Context, d *inbox.Delivery) error {
			if err := handle(d); err != nil {
				return err
			}
			b := &pgx.Batch{}
			b.Queue(pay, d.ID)
			return d.Commit(ctx, db, b)
		},
	})
	must(t, err)
	subscriber := outbox.NewSubscriber(db.Pool(), outbox.Options{})
	t.Cleanup(func() { _ = subscriber.Close() })
	check := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	running := process(func() { check(p.Run(t.Context())) })
	receiving := process(func() { check(p.Consume(t.Context(), subscriber, "payments", nil)) })
	t.Cleanup(func() {
		await.Receive(t, "the end of the reception", receiving)
		await.Receive(t, "the inbox's end", running)
	})
}
