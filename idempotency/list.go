package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Entry is what one key led to. It outlives the answer.
type Entry struct {
	Operation  string
	StatusCode int
	Location   string // empty if none
	FirstSeen  time.Time
	ExpiresAt  time.Time
}

// The operations of a scope are few and its keys are many, so this walks from one
// operation to the next and probes the primary key under each: no index beside it
// that every claim would have to write. The offset keeps the probe a probe.
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

// List tells what a key led to under each operation of a scope, in the order in
// which it was used; expired uses are among them. No use is no error.
func List(ctx context.Context, q postgres.Querier, scope, key string) ([]Entry, error) {
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
