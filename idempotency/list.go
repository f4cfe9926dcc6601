package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Entry is one use of a key. It outlives the answer.
type Entry struct {
	Operation  string
	StatusCode int
	Location   string // empty if none
	FirstSeen  time.Time
	ExpiresAt  time.Time
}

// A scope has few operations and many keys. So the statement steps from one operation
// to the next and probes the primary key under each: an index by key would cost every
// claim a write. offset 0: an index probe.
const selectEntries = `
with recursive operations as (
  (select operation
     from idempotency_keys
    where scope = $1
    order by operation
    limit 1)
   union all
  select (select k.operation
            from idempotency_keys k
           where k.scope = $1
             and k.operation > o.operation
           order by k.operation
           limit 1)
    from operations o
   where o.operation is not null
)
select k.operation,
       k.status_code,
       k.location,
       k.created_at as first_seen,
       k.expires_at
  from operations o
 cross join lateral (
       select operation, status_code, location, created_at, expires_at
         from idempotency_keys
        where scope = $1
          and operation = o.operation
          and key = $2
       offset 0) as k
 order by k.created_at, k.operation`

// List returns the uses of a key under each operation of a scope, expired ones
// included, oldest first.
func List(ctx context.Context, q Querier, scope, key string) ([]Entry, error) {
	rows, err := q.Query(ctx, selectEntries, scope, key)
	if err != nil {
		return nil, fmt.Errorf("list the uses of an idempotency key: %w", err)
	}
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByName[Entry])
	if err != nil {
		return nil, fmt.Errorf("list the uses of an idempotency key: %w", err)
	}
	return entries, nil
}
