package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
)

// deleteReceived deletes messages that every group has received. Of each topic the oldest ones
// are read, as many as may go: if they are too young, so are those behind them. A message never
// changes and is not even locked, so it keeps its ctid, and of two calls that delete it the
// second waits for the first and finds it gone.
//
// An offset that this server has not come to is another server's, and so is each of a dump that
// was not repaired: what lies below it may not have been received.
const deleteReceived = `
with passed as (
  select distinct on (topic)
         topic,
         transaction_id,
         "offset"
    from outbox_offsets
   order by topic, transaction_id, "offset"
), oldest as materialized (
  select m.row,
         m.created_at
    from passed p
   cross join lateral (
           select o.ctid as row,
                  o.created_at
             from outbox o
            where o.topic = p.topic
              and (o.transaction_id, o."offset") <= (p.transaction_id, p."offset")
            order by o.transaction_id, o."offset"
            limit $2) m
   where p.transaction_id < pg_snapshot_xmax(pg_current_snapshot())
     and (select own from numbering)
)
delete from outbox
 where ctid = any (array(
         select row
           from oldest
          where created_at < now() - $1::interval
          limit $2))`

// DeleteExpired deletes up to limit messages that every consumer group of their topic has
// received and that are older than retention, by the database's clock. It returns how many it
// deleted: much fewer than limit means that nothing was left to do. A topic that no group reads
// keeps its messages. Several callers may call it concurrently.
//
// A group is known by its row in outbox_offsets, which its first subscription makes. A group
// whose offset is moved back receives again what is still there, and a new group all of it.
//
// If we die here: the statement is one transaction of its own. Its rows are gone, or the next
// call finds them. Test: TestDeleteExpired/what_a_dead_process_held_is_deleted_by_the_next.
func DeleteExpired(ctx context.Context, db groupcommit.DB, retention time.Duration, limit int) (int, error) {
	var deleted int64
	b := &pgx.Batch{}
	b.Queue(deleteReceived, retention, limit).Exec(func(tag pgconn.CommandTag) error {
		deleted = tag.RowsAffected()
		return nil
	})
	if err := db.Commit(ctx, b); err != nil {
		return 0, fmt.Errorf("delete received messages of the outbox: %w", err)
	}
	return int(deleted), nil
}
