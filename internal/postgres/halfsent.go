package postgres

import (
	"context"
	"fmt"
	"time"
)

// HalfSent is how long a session may stand in the middle of a transaction and
// wait for the rest of what its program sends.
const HalfSent = 20 * time.Second

// EndHalfSent ends the sessions of programs whose application name begins with prefix and
// that have stood in the middle of a batch for longer than patience, and returns how many
// there were. What they had written is rolled back; for a program that goes on, the
// commit's outcome is unknown. Before PostgreSQL 17 no time-out ends such a session, and
// readers of the outbox stay below its transaction.
//
// The function is in migrations/service.sql, since the worker may end no other sessions.
func EndHalfSent(ctx context.Context, q Querier, prefix string, patience time.Duration) (ended int, err error) {
	if err := q.QueryRow(ctx, `select end_half_sent($1, $2)`, prefix, patience).Scan(&ended); err != nil {
		return 0, fmt.Errorf("end half-sent transactions: %w", err)
	}
	return ended, nil
}
