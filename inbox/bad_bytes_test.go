package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

func TestProcessor_storesAnErrorWithBytesThatPostgreSQLRefuses(t *testing.T) {
	t.Parallel()
	errs := map[string]error{
		"wait":    &inbox.WaitError{AtLeast: time.Hour, Err: errors.New("malformed header: \x00\xff")},
		"dead":    &inbox.DeadLetterError{Err: errors.New("\xff\x00")},
		"failure": errors.New("\x00\xff"),
	}
	db := testdb.Reused(t)
	for id := range errs {
		put(t, db, id, id)
	}
	p := processor(db, func(_ context.Context, d *inbox.Delivery) error {
		return errs[d.ID]
	})
	p.Policy.BackoffBase, p.Policy.BackoffCap = time.Millisecond, 10*time.Millisecond
	start(t, p)
	await.Row(t, db, `
select bool_and(case message_id
                  when 'wait'    then status = 'pending' and attempts = 0 and waits = 1 and last_error like 'waiting: malformed header%'
                  when 'dead'    then status = 'dead' and attempts = 1 and last_error is not null
                  when 'failure' then status = 'dead' and attempts = 3 and last_error is not null
                end)
  from inbox`)
}

func TestProcessor_unreadableMetadataOfOneMessageDelaysNoOther(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for id, metadata := range map[string]string{"strange": `{"a": 1}`, "a": `{"type": "t"}`, "b": `{"type": "t"}`} {
		put(t, db, id, id)
		write(t, db, `update inbox set metadata = $2 where message_id = $1`, id, metadata)
	}
	start(t, processor(db, answer(nil)))
	await.Row(t, db, `select bool_and(status = 'done' and attempts = 1) from inbox`)
}
