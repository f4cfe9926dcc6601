package idempotency

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// sweepExpired makes tombstones of expired keys. now() is not later than clock_timestamp()
// and, unlike it, can bound an index scan. A row that is locked keeps its ctid; joined by
// key, a batch could be planned to read the whole table. The planner settings of Sweep keep
// the statement to a walk of the index in order of expiry, up to the limit.
const sweepExpired = `
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

// Sweep turns up to limit expired keys into tombstones and returns their number: it
// deletes answer and request, and keeps what tells a reuse apart. Since a key has expired
// by its time, swept or not, this changes no answer. Several processes may sweep at once:
// each skips the rows that another holds. Fewer than limit means that none were left.
//
// If we die here: the statement is a transaction of its own. Either its rows are swept,
// or the next Sweep finds them.
// Test: TestSweep/rows_of_a_dead_sweep_are_swept_by_the_next.
func Sweep(ctx context.Context, q groupcommit.Querier, limit int) (int, error) {
	rows, _ := q.Query(ctx, sweepExpired, limit) // they have the error too
	swept, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("sweep expired idempotency keys: %w", err)
	}
	return len(swept), nil
}
