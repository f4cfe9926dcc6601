package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// HalfSent is how long a session may stand in the middle of a transaction and
// wait for the rest of what its program sends.
const HalfSent = 20 * time.Second

// A program that stops, or whose network stalls, after it has sent a part of a
// batch leaves a transaction open that no time-out of a session ends before
// PostgreSQL 17: to the server the session is active, and waits for its client.
// Meanwhile nobody reads what was committed later, since readers of the outbox
// stay below the oldest transaction under way.
const endHalfSent = `
select count(*) filter (where pg_terminate_backend(pid))
  from pg_stat_activity
 where datname = current_database()
   and usename = session_user
   and application_name like $1 || '%'
   and state = 'active'
   and wait_event = 'ClientRead'
   and backend_xid is not null
   and xact_start < clock_timestamp() - $2::interval
   and pid <> pg_backend_pid()`

// EndHalfSent ends the sessions of programs whose application name begins with
// prefix and that have stood in the middle of a transaction for longer than
// HalfSent, and says how many there were. What they had written is rolled back;
// if such a program goes on, its commit's outcome is unknown to it, as after a cut.
func EndHalfSent(ctx context.Context, q Querier, prefix string) (int, error) {
	return endHalfSentAfter(ctx, q, prefix, HalfSent)
}

func endHalfSentAfter(ctx context.Context, q Querier, prefix string, patience time.Duration) (int, error) {
	rows, err := q.Query(ctx, endHalfSent, prefix, patience)
	if err != nil {
		return 0, fmt.Errorf("end half-sent transactions: %w", err)
	}
	ended, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("end half-sent transactions: %w", err)
	}
	return ended, nil
}
