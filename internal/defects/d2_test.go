package defects_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// D2: when its handler fails, the document marks the message as failed and
// commits, in the handler's own transaction. What the handler had written until
// then commits too, and the retry writes it again. And where the failure was one
// of SQL, the transaction is aborted and the mark is refused.

const messagesOfD2 = `
create table processed_messages (
  message_id text primary key,
  status     text not null
)`

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
		db := miniature(t, messagesOfD2, payments)
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
		for range 2 {
			if err := processOfD2(t.Context(), db, "m1", handle); !errors.Is(err, errBroken) {
				t.Errorf("the attempt ended with %v", err)
			}
		}
		wantPayments(t, db, 2)
		if err := processOfD2(t.Context(), db, "m1", handle); err != nil {
			t.Errorf("the last attempt ended with %v", err)
		}
		wantPayments(t, db, 3)
	})

	t.Run("a failure of SQL is not marked and not reported", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, messagesOfD2, payments)
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
