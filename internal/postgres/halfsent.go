package postgres

import (
	"context"
	"fmt"
	"time"
)

// HalfSent is how long a session may stand in the middle of a transaction and
// wait for the rest of what its program sends.
const HalfSent = 20 * time.Second

// EndHalfSent ends the sessions of programs whose application name begins with
// prefix and that have stood in the middle of a transaction for longer than patience,
// and returns how many there were. What they had written is rolled back; if such a
// program goes on, its commit's outcome is unknown to it, as after a cut.
//
// A program that stops, or whose network stalls, after it has sent a part of a
// batch leaves a transaction open that no time-out of a session ends before
// PostgreSQL 17: to the server the session is active, and waits for its client.
// Meanwhile no later message is received, since readers of the outbox stay below the
// oldest transaction in flight.
//
// The function is in migrations/service.sql, since the worker may end no other sessions.
// Sessions that the owner of the tables may not end are left alone: with login users of
// the programs' own it needs pg_signal_backend and pg_read_all_stats.
func EndHalfSent(ctx context.Context, q Querier, prefix string, patience time.Duration) (ended int, err error) {
	if err := q.QueryRow(ctx, `select end_half_sent($1, $2)`, prefix, patience).Scan(&ended); err != nil {
		return 0, fmt.Errorf("end half-sent transactions: %w", err)
	}
	return ended, nil
}
