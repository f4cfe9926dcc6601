package defects_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
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

// isNew is the documents' guard: it marks a key, unless the key is marked.
func isNew(t *testing.T, db *pgxpool.Pool, key string) bool {
	t.Helper()
	taken, err := db.Exec(t.Context(), `insert into processed_messages values ($1, 'processing') on conflict do nothing`, key)
	if err != nil {
		t.Fatal(err)
	}
	return taken.RowsAffected() == 1
}

// wantPaymentsFor delivers messages that have these keys, and pays for each that is new.
func wantPaymentsFor(t *testing.T, want int, keys ...string) {
	t.Helper()
	db := miniature(t, processed, payments)
	for _, key := range keys {
		if !isNew(t, db, key) {
			continue
		}
		if _, err := db.Exec(t.Context(), pay, key); err != nil {
			t.Fatal(err)
		}
	}
	wantPayments(t, db, want)
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

// die ends a process where it stands: nothing behind it runs.
func die() { runtime.Goexit() }

// sqlState is the SQLSTATE of an error, "" if it has none.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
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
