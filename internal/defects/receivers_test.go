package defects_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/await"
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
		must(t, consumeOfD1(t.Context(), db, "m1"))
		wantError(t, "a duplicate", pgx.ErrTxCommitRollback, consumeOfD1(t.Context(), db, "m1"))
		wantPayments(t, db, 1)
	})
}

// D2: when its handler fails, the document marks the message as failed and
// commits, in the handler's own transaction. What the handler had written until
// then commits too, and the retry writes it again. And where the failure was one
// of SQL, the transaction is aborted and the mark is refused.

// A message that is new, or has failed, is taken; any other is a duplicate.
const takeOfD2 = `
insert into processed_messages
values ($1, 'processing')
on conflict (message_id) do update
   set status = 'processing'
 where processed_messages.status = 'failed'`

const markOfD2 = `
update processed_messages
   set status = $2
 where message_id = $1`

// processOfD2 is the document's receiver.
func processOfD2(ctx context.Context, db *pgxpool.Pool, id string, handle func(pgx.Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	taken, err := tx.Exec(ctx, takeOfD2, id)
	if err != nil || taken.RowsAffected() == 0 {
		return err
	}
	status := "completed"
	failure := handle(tx)
	if failure != nil {
		status = "failed"
	}
	if _, err := tx.Exec(ctx, markOfD2, id, status); err != nil {
		return err
	}
	return errors.Join(failure, tx.Commit(ctx))
}

func TestD2(t *testing.T) {
	t.Parallel()

	t.Run("two attempts that failed have paid twice", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processed, payments)
		attempts := 0
		handle := func(tx pgx.Tx) error {
			attempts++
			if _, err := tx.Exec(t.Context(), pay, "m1"); err != nil {
				return err
			}
			if attempts < 3 {
				return errBroken // the step behind the payment
			}
			return nil
		}
		for i, want := range []error{errBroken, errBroken, nil} {
			wantError(t, "the attempt", want, processOfD2(t.Context(), db, "m1", handle))
			wantPayments(t, db, i+1)
		}
	})

	t.Run("a failure of SQL is not marked and not reported", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processed, payments)
		err := processOfD2(t.Context(), db, "m1", func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `insert into payments values ('m1', -1)`)
			return err
		})
		if sqlState(err) != "25P02" {
			t.Errorf("the attempt ended with %v, want 25P02 in place of the check that refused", err)
		}
		wantCount(t, db, "messages marked as failed", 0, `select count(*) from processed_messages`)
	})
}

// D3: two of the documents write "processing" in the transaction that also does the work,
// and answer 425 or "duplicate" to a request that finds it. No request can find it: it is
// not committed. A concurrent duplicate waits on the unique index for as long as the work
// takes, then finds it finished.

// arriveOfD3 is how the document takes a message, and what it finds.
func arriveOfD3(ctx context.Context, tx pgx.Tx, id string) (found string, err error) {
	taken, err := tx.Exec(ctx, `insert into processed_messages values ($1, 'processing') on conflict do nothing`, id)
	if err != nil || taken.RowsAffected() == 1 {
		return "new", err
	}
	err = tx.QueryRow(ctx, `select status from processed_messages where message_id = $1 for update`, id).Scan(&found)
	return found, err
}

func TestD3(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		end  func(context.Context, pgx.Tx) error
		want string
	}{
		"a duplicate waits for the end of the work and finds it completed": {
			func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `update processed_messages set status = 'completed'`)
				return errors.Join(err, tx.Commit(ctx))
			}, "completed",
		},
		"a duplicate of work that fails does not find it processing": {
			func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, "new",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := miniature(t, processed)
			first := begin(t, db)
			if found, err := arriveOfD3(t.Context(), first, "m1"); err != nil || found != "new" {
				t.Fatalf("the first finds it %s: %v", found, err)
			}
			second := begin(t, db)
			var found string
			ended := process(func() {
				var err error
				found, err = arriveOfD3(t.Context(), second, "m1")
				wantError(t, "the duplicate", nil, err)
			})
			await.Blocked(t, db, 1)
			wantCount(t, db, "rows that are visible while the work is done", 0, `select count(*) from processed_messages`)
			must(t, test.end(t.Context(), first))
			await.Receive(t, "the duplicate's end", ended)
			if found != test.want {
				t.Errorf("the duplicate finds it %s, want %s", found, test.want)
			}
		})
	}
}

// D4: a message that is found "processing" is a duplicate, says the document, and
// a duplicate is acknowledged. If its owner then dies, the broker has nothing
// left to deliver: the message is lost. The document's variant with a cache does
// the opposite: it falls through and processes what another one is processing.
//
// The row is visible only if it has a commit of its own (D3), as the document's text and
// picture have it.

// receiverOfD4 is the document's receiver.
type receiverOfD4 struct {
	*pgxpool.Pool
	fallsThrough bool // as the variant with a cache
}

// receive processes the message m1. What returns without an error is acknowledged.
func (r receiverOfD4) receive(ctx context.Context, work func() error) error {
	taken, err := r.Exec(ctx, `insert into processed_messages values ('m1', 'processing') on conflict do nothing`)
	if err != nil {
		return err
	}
	if taken.RowsAffected() == 0 {
		var status string
		if err := r.QueryRow(ctx, `select status from processed_messages where message_id = 'm1'`).Scan(&status); err != nil {
			return err
		}
		if status == "completed" || status == "processing" && !r.fallsThrough {
			return nil
		}
	}
	if err := work(); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, r, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, pay, "m1"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `update processed_messages set status = 'completed' where message_id = 'm1'`)
		return err
	})
}

func TestD4(t *testing.T) {
	t.Parallel()

	t.Run("a duplicate is acknowledged, its owner dies, the message is lost", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processed, payments)
		receive := func(work func() error) error { return receiverOfD4{Pool: db}.receive(t.Context(), work) }
		crash := hold(t, receive, func() error { die(); return nil })
		// The broker saw no acknowledgment in time and delivers again, and a third time.
		for range 2 {
			wantError(t, "the duplicate, which is acknowledged,", nil, receive(func() error { t.Error("it is processed"); return nil }))
			crash()
			crash = func() {}
		}
		wantPayments(t, db, 0)
		wantCount(t, db, "messages that are processing for ever", 1, `select count(*) from processed_messages where status = 'processing'`)
	})

	t.Run("the variant with a cache pays twice", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processed, payments)
		nothing := func() error { return nil }
		receive := func(work func() error) error {
			return receiverOfD4{Pool: db, fallsThrough: true}.receive(t.Context(), work)
		}
		finish := hold(t, receive, nothing)
		wantError(t, "the duplicate", nil, receive(nothing))
		finish()
		wantPayments(t, db, 2)
	})
}
