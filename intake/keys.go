package intake

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
)

// BatchedRead returns a Read of idempotency.Options that reads keys in batches: those that are
// asked for at the same time share a round trip (postgres.Reads). So many are in flight at most,
// so a lock on the table holds no more connections. A scope is a merchant, and each key is
// read as the merchant of its scope.
//
// A read in flight goes on when its callers have left: the server would go on to wait for its
// standby in a session that no bound counts.
func BatchedRead(db *postgres.DB, most int) func(ctx context.Context, _ groupcommit.Querier, key idempotency.Key) (idempotency.KeyState, error) {
	reads := postgres.NewReads(most, func(ctx context.Context, keys []idempotency.Key) ([]idempotency.KeyState, error) {
		states, scopes := make([]idempotency.KeyState, len(keys)), map[string][]*idempotency.KeyState{}
		for i, key := range keys {
			states[i].Key = key
			scopes[key.Scope] = append(scopes[key.Scope], &states[i])
		}
		b := &pgx.Batch{}
		for scope, states := range scopes {
			postgres.QueueTenant(b, scope)
			idempotency.QueueKeys(b, states)
		}
		if err := db.Read(context.WithoutCancel(ctx), b); err != nil {
			return nil, fmt.Errorf("read idempotency keys: %w", err)
		}
		return states, nil
	})
	return func(ctx context.Context, _ groupcommit.Querier, key idempotency.Key) (idempotency.KeyState, error) {
		return reads.Lookup(ctx, key)
	}
}
