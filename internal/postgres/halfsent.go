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
// stay below the oldest transaction under way. The function is in
// migrations/service.sql:
// the worker may not end sessions, other than these.
const endHalfSent = `
select end_half_sent($1, $2)`

// EndHalfSent ends the sessions of programs whose application name begins with
// prefix and that have stood in the middle of a transaction for longer than
// HalfSent, and says how many there were. Sessions that the owner of the tables
// may not end are left alone: with login users of the programs' own it needs
// pg_signal_backend and pg_read_all_stats. What they had written is rolled back;
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
