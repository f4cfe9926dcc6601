package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/payonce/payonce/internal/postgres"
)

// selectReplicated is selectAnswers in a transaction that writes to the log. Its
// commit waits for the synchronous standby as every commit does, and with it for all
// that was committed before on the same server.
const selectReplicated = selectAnswers + `
 where pg_logical_emit_message(true, 'payonce', '') is not null`

// confirmTimeout bounds the wait of one replay for the standby. Tests shorten it.
var confirmTimeout = 5 * time.Second

// replicated reads a key that was found once more, and returns what it finds when a
// synchronous standby has it.
//
// A commit can be visible on the primary before its standby has it: after a restart
// of the primary, or when an operator ended its wait. An answer from such a key would
// be lost in a failover, and the client would believe it. ErrUnavailable: the standby
// did not confirm in time.
func replicated(ctx context.Context, q postgres.Querier, key Key) (found Looked, err error) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	all, each := unlooked([]Key{key})
	read := looking(&key.Scope, each)
	rows, err := q.Query(ctx, selectReplicated, read.Args...)
	if err == nil {
		err = read.Rows(rows)
	}
	if err != nil {
		return Looked{}, fmt.Errorf("%w: confirm a key with the standby: %w", ErrUnavailable, err)
	}
	return all[0], nil
}
