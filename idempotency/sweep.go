package idempotency

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// now() is a moment earlier than clock_timestamp() and, unlike it, can be a
// bound of the index. A row that is locked keeps its ctid; joined by their key
// instead, a batch could be planned to read the whole table.
//
// What has expired is walked through in the order of the index, as far as the
// limit: other ways read all that has expired to sort it, or all that there is.
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
       request      = null
 where ctid = any (array(select ctid from due))
returning 1`

// Sweep turns up to limit expired keys into tombstones and says how many there
// were: answer and request are dropped, and what tells a reuse apart stays. It
// changes no answer, since a key has expired by its time, swept or not. Several
// may sweep at once: each takes what no other holds. Fewer than limit means that
// nothing was left to do.
//
// If we die here: the statement is one transaction of its own. Either its rows
// are swept, or the next sweep finds them.
// Test: TestSweep/what_a_dead_sweeper_held_is_swept_by_the_next.
func Sweep(ctx context.Context, q postgres.QuerierWith, limit int) (int, error) {
	rows, err := q.QueryWith(ctx, postgres.Settings{
		"enable_bitmapscan": "off", "enable_seqscan": "off", "enable_sort": "off", "jit": "off",
	}, sweepExpired, limit)
	if err != nil {
		return 0, fmt.Errorf("sweep expired idempotency keys: %w", err)
	}
	swept, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("sweep expired idempotency keys: %w", err)
	}
	return len(swept), nil
}
