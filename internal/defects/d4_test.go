package defects_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/await"
)

// D4: a message that is found "processing" is a duplicate, says the document, and
// a duplicate is acknowledged. If its owner then dies, the broker has nothing
// left to deliver: the message is lost. The document's variant with a cache does
// the opposite: it falls through and processes what another one is processing.
//
// The row is visible only if it has a commit of its own (D3), as the document's text and
// picture have it.

const messagesOfD4 = `
create table processed_messages (
  message_id text primary key,
  status     text not null
)`

// receiverOfD4 is the document's receiver.
type receiverOfD4 struct {
	*pgxpool.Pool
	fallsThrough bool // as the variant with a cache
}

// receive processes the message m1. What returns without an error is acknowledged.
func (r receiverOfD4) receive(ctx context.Context, work func()) error {
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
	work()
	tx, err := r.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, pay, "m1"); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `update processed_messages set status = 'completed' where message_id = 'm1'`); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func TestD4(t *testing.T) {
	t.Parallel()

	t.Run("a duplicate is acknowledged, its owner dies, the message is lost", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, messagesOfD4, payments)
		r := receiverOfD4{Pool: db}
		begun, crash := make(chan struct{}), make(chan struct{})
		ended := process(func() {
			_ = r.receive(t.Context(), func() { close(begun); <-crash; die() })
			t.Error("the owner lives")
		})
		await.Receive(t, "the owner", begun)
		// The broker saw no acknowledgment in time and delivers again.
		if err := r.receive(t.Context(), func() { t.Error("it is processed") }); err != nil {
			t.Errorf("the duplicate is not acknowledged: %v", err)
		}
		close(crash)
		await.Receive(t, "the owner's end", ended)
		// Acknowledged, so never delivered again; and a third delivery would not help.
		if err := r.receive(t.Context(), func() { t.Error("it is processed") }); err != nil {
			t.Error(err)
		}
		wantPayments(t, db, 0)
		wantCount(t, db, "messages that are processing for ever", 1, `select count(*) from processed_messages where status = 'processing'`)
	})

	t.Run("the variant with a cache pays twice", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, messagesOfD4, payments)
		r := receiverOfD4{Pool: db, fallsThrough: true}
		begun, finish := make(chan struct{}), make(chan struct{})
		ended := process(func() {
			if err := r.receive(t.Context(), func() { close(begun); <-finish }); err != nil {
				t.Error(err)
			}
		})
		await.Receive(t, "the owner", begun)
		if err := r.receive(t.Context(), func() {}); err != nil {
			t.Error(err)
		}
		close(finish)
		await.Receive(t, "the owner's end", ended)
		wantPayments(t, db, 2)
	})
}
