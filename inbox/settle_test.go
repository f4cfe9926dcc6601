package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// A message that comes while a handler looks may be what the handler misses.
func TestAWaitEndsAtOnceWhenAMessageOfItsKeyCameMeanwhile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key  string
		want string
	}{
		"of its key":   {"k", `select status = 'done' from inbox where message_id = 'm1'`},
		"of other key": {"l", `select bool_and(status = case message_id when 'm1' then 'pending' else 'done' end) and max(due_at) > clock_timestamp() + interval '1 hour' from inbox`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			put(t, db, "m1", "k")
			start(t, processor(db, func(_ context.Context, d inbox.Delivery) (inbox.Result, error) {
				if d.ID == "m1" && d.Waits == 0 {
					put(t, db, "m2", test.key)
					return inbox.Complete, &inbox.WaitError{AtLeast: 5 * time.Hour, Err: context.DeadlineExceeded}
				}
				return inbox.Complete, nil
			}))
			await(t, db, test.want)
		})
	}

	t.Run("also when its commit and the wait cross", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		put(t, db, "m1", "k")
		begun, wait := make(chan struct{}), make(chan struct{})
		start(t, processor(db, func(_ context.Context, d inbox.Delivery) (inbox.Result, error) {
			if d.ID == "m1" && d.Waits == 0 {
				close(begun)
				<-wait
				return inbox.Complete, &inbox.WaitError{AtLeast: 5 * time.Hour, Err: context.DeadlineExceeded}
			}
			return inbox.Complete, nil
		}))
		receiveFrom(t, "the handler", begun)
		tx, err := db.Pool().Begin(t.Context()) // as receiving does it
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{
			`select from inbox where message_id = 'm1' for no key update`,
			`insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash) values ('r', 'm2', 'k', 't', '', '{}', '')`,
		} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		close(wait)
		await(t, db, `select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		await(t, db, `select bool_and(status = 'done') from inbox`)
	})
}
