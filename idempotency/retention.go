package idempotency

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// expireKeys makes tombstones of expired keys. now() is not later than clock_timestamp()
// and, unlike it, can bound an index scan. A row that is locked keeps its ctid; joined by
// key, a batch could be planned to read the whole table. The planner settings of ExpireKeys keep
// the statement to a walk of the index in order of expiry, up to the limit.
const expireKeys = `
with due as (
  select ctid
    from idempotency_keys
   where body is not null
     and expires_at <= now()
   order by expires_at
   limit $1
     for update skip locked
)
update idempotency_keys
   set body         = null,
       content_type = null,
       request      = null,
       headers      = null
 where ctid = any (array(select ctid from due))
returning 1`

// ExpireKeys turns up to limit expired keys into tombstones and returns their number: it
// deletes answer and request, and keeps what tells a reuse apart. Since a key has expired
// by its time, expired here or not, this changes no answer. Several processes may call it at once:
// each skips the rows that another holds. Fewer than limit means that none were left.
//
// If we die here: the statement is a transaction of its own. Either its rows are tombstones,
// or the next ExpireKeys finds them.
// Test: TestExpireKeys/rows_of_a_dead_process_are_expired_by_the_next.
func ExpireKeys(ctx context.Context, q groupcommit.Querier, limit int) (int, error) {
	rows, _ := q.Query(ctx, expireKeys, limit) // they have the error too
	expired, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("expire idempotency keys: %w", err)
	}
	return len(expired), nil
}
