package postgres

import (
	"context"
	"fmt"
	"time"
)

const (
	// HalfSent is how long a session may stand in the middle of a transaction and
	// wait for the rest of what its program sends.
	HalfSent = 20 * time.Second
	// Held is how long a transaction of the api or the console may be open. A request lasts 20 s
	// at most.
	Held = time.Minute
)

// EndStuck ends sessions that hold up others, and returns how many there were. What they had
// written is rolled back; for a program that goes on, the commit's outcome is unknown.
//
//   - Sessions of programs whose application name begins with prefix, and that have stood in
//     the middle of a batch for longer than halfSent. Before PostgreSQL 17 no time-out ends
//     such a session, and the followers of the ledger stay below its transaction.
//   - Sessions of the api's and the console's database users whose transaction is older than
//     held, or that hold an advisory lock: these programs take none. An attacker who has the
//     password chooses the application name and all time limits. Such a user is a member of
//     payonce_api or payonce_console that is no member of payonce_worker.
//
// A session that waits for its standby is spared: to end it would show its commit.
//
// The function is in migrations/service.sql, since the worker may end no other sessions.
func EndStuck(ctx context.Context, q Querier, prefix string, halfSent, held time.Duration) (ended int, err error) {
	if err := q.QueryRow(ctx, `-- postgres.EndStuck
select end_stuck_sessions($1, $2, $3)`, prefix, halfSent, held).Scan(&ended); err != nil {
		return 0, fmt.Errorf("end sessions that hold up others: %w", err)
	}
	return ended, nil
}
