package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// now() is a moment earlier than clock_timestamp() and, unlike it, can be a
// bound of the index.
const sweepDone = `
with due as (
  select id
    from inbox
   where status = 'done'
     and finished_at < now() - $1::interval
   order by finished_at
   limit $2
     for update skip locked
)
delete from inbox i
 using due
 where i.id = due.id
returning 1`

// Sweep deletes up to limit messages that were done longer than retention ago, by
// the database's clock, and says how many there were. Parked and discarded ones
// stay. Several may sweep at once: each takes what no other holds. Fewer than
// limit means that nothing was left to do.
//
// A message that is delivered again after its row is gone is a new one, so
// retention must be longer than any delivery can be late.
//
// If we die here: the statement is one transaction of its own. Either its rows
// are gone, or the next sweep finds them.
// Test: TestSweep/what_a_dead_sweeper_held_is_swept_by_the_next.
func Sweep(ctx context.Context, q postgres.Querier, retention time.Duration, limit int) (int, error) {
	rows, err := q.Query(ctx, sweepDone, retention, limit)
	if err != nil {
		return 0, fmt.Errorf("sweep done messages: %w", err)
	}
	swept, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("sweep done messages: %w", err)
	}
	return len(swept), nil
}
