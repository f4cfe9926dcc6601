package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
)

// deleteDone deletes messages that are done. Plans do not know how many rows the view lets
// go, so its value is read first. A locked row keeps its ctid; a join by number could be
// planned to read the table.
const deleteDone = `
delete from inbox
 where ctid = any (array(
         select ctid
           from inbox
          where status = 'done'
            and finished_at < now() - $1::interval
            and received_in < (select received_before from inbox_retention)
          order by finished_at
          limit $2
            for update skip locked))`

// DeleteExpired deletes up to limit messages that were done longer than retention ago, in
// database time, and returns how many it deleted; below limit, nothing was left. Dead
// letters and discarded messages stay. Several callers may call it concurrently.
//
// A message that is redelivered after its row is gone is new. So retention is longer than
// the transport can redeliver: than the retention of a topic, or than a sender repeats. An
// application that can tell exactly replaces the view inbox_retention, which every deletion
// obeys (see Schema). A handler that looks at what it has already done does nothing twice
// in any case.
//
// If we die here: the statement is a transaction of its own. Its rows are gone, or the
// next call finds them. Test: TestDeleteExpired/what_a_dead_process_held_is_deleted_by_the_next.
func DeleteExpired(ctx context.Context, db groupcommit.DB, retention time.Duration, limit int) (int, error) {
	return deleteExpired(ctx, db, "done", deleteDone, retention, limit)
}

// deleteQuarantined deletes what is in quarantine. Such a row never changes, so it keeps its
// ctid.
const deleteQuarantined = `
delete from inbox_quarantine
 where ctid = any (array(
         select ctid
           from inbox_quarantine
          where received_at < now() - $1::interval
          order by received_at
          limit $2))`

// DeleteExpiredQuarantine is DeleteExpired for messages that were quarantined longer than
// retention ago. Nothing depends on them, and a sender that repeats one id with ever new payloads
// must not fill the disk.
func DeleteExpiredQuarantine(ctx context.Context, db groupcommit.DB, retention time.Duration, limit int) (int, error) {
	return deleteExpired(ctx, db, "quarantined", deleteQuarantined, retention, limit)
}

func deleteExpired(ctx context.Context, db groupcommit.DB, what, expired string, retention time.Duration, limit int) (int, error) {
	var deleted int64
	b := &pgx.Batch{}
	b.Queue(expired, retention, limit).Exec(func(tag pgconn.CommandTag) error {
		deleted = tag.RowsAffected()
		return nil
	})
	if err := db.Commit(ctx, b); err != nil {
		return 0, fmt.Errorf("delete %s messages: %w", what, err)
	}
	return int(deleted), nil
}
