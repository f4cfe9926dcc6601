package defects_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// D1: on a duplicate key the document reads the stored answer in the very
// transaction in which its insert has just failed. PostgreSQL has aborted that
// transaction and answers nothing but 25P02.

const keysOfD1 = `
create table idempotency_keys (
  operation   text not null,
  idem_key    text not null,
  status      text not null,
  result_code int,
  unique (operation, idem_key)
)`

// createPayment is the document's handler of a request.
func createPayment(ctx context.Context, db *pgxpool.Pool, key string) (statusCode int, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into idempotency_keys values ('createPayment', $1, 'PENDING')`, key)
		if sqlState(err) == "23505" {
			return tx.QueryRow(ctx, `select result_code from idempotency_keys where idem_key = $1`, key).Scan(&statusCode)
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, pay, key); err != nil {
			return err
		}
		statusCode = http.StatusCreated
		_, err = tx.Exec(ctx, `update idempotency_keys set status = 'SUCCEEDED', result_code = $2 where idem_key = $1`, key, statusCode)
		return err
	})
	return statusCode, err
}

// consumeOfD1 is the document's handler of a message: it catches the duplicate key
// too, and returns as if nothing had happened.
func consumeOfD1(ctx context.Context, db *pgxpool.Pool, key string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into idempotency_keys values ('projectOrder', $1, 'PENDING')`, key)
		if sqlState(err) == "23505" {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, pay, key)
		return err
	})
}

func TestD1(t *testing.T) {
	t.Parallel()

	t.Run("a duplicate gets an error in place of its answer", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, keysOfD1, payments)
		if code, err := createPayment(t.Context(), db, "k1"); err != nil || code != http.StatusCreated {
			t.Fatalf("first: %d, %v", code, err)
		}
		for range 3 {
			if code, err := createPayment(t.Context(), db, "k1"); sqlState(err) != "25P02" {
				t.Errorf("a duplicate gets %d, %v, want 25P02", code, err)
			}
		}
		wantPayments(t, db, 1)
	})

	t.Run("a duplicate message fails at its commit", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, keysOfD1, payments)
		if err := consumeOfD1(t.Context(), db, "m1"); err != nil {
			t.Fatal(err)
		}
		if err := consumeOfD1(t.Context(), db, "m1"); !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("a duplicate ends with %v, want a commit that rolled back", err)
		}
		wantPayments(t, db, 1)
	})
}
