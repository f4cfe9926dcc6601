package defects_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
)

// D3: two of the documents write "processing" in the transaction that also does the work,
// and answer 425 or "duplicate" to a request that finds it. No request can find it: it is
// not committed. A concurrent duplicate waits on the unique index for as long as the work
// takes, then finds it finished.

const messagesOfD3 = `
create table processed_messages (
  message_id text primary key,
  status     text not null
)`

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
			db := miniature(t, messagesOfD3)
			first := begin(t, db)
			if found, err := arriveOfD3(t.Context(), first, "m1"); err != nil || found != "new" {
				t.Fatalf("the first finds it %s: %v", found, err)
			}
			second := begin(t, db)
			found := make(chan string, 1)
			ended := process(func() {
				status, err := arriveOfD3(t.Context(), second, "m1")
				if err != nil {
					t.Error(err)
				}
				found <- status
			})
			await.Blocked(t, db, 1)
			wantCount(t, db, "rows that anybody can see while the work is done", 0, `select count(*) from processed_messages`)
			if err := test.end(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			if got := await.Receive(t, "the duplicate's answer", found); got != test.want {
				t.Errorf("the duplicate finds it %s, want %s", got, test.want)
			}
			await.Receive(t, "the duplicate's end", ended)
		})
	}
}
