package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// now() is not later than clock_timestamp() and, unlike it, can bound an index scan. A
// row that is locked keeps its ctid; joined by key, a batch could be planned to read
// the whole table. The planner settings of Sweep keep the statement to a walk of the
// index in order of expiry, up to the limit.
const sweepExpired = `
with due as (
  select ctid
    from idempotency_keys
   where body is not null
     and expires_at <= now()
   order by expires_at
   limit $1
     for update skip locked
)
update idempotency_keys
   set body         = null,
       content_type = null,
       request      = null,
       headers      = null
 where ctid = any (array(select ctid from due))
returning 1`

// Sweep turns up to limit expired keys into tombstones and returns their number: it
// deletes answer and request, and keeps what tells a reuse apart. Since a key has expired
// by its time, swept or not, this changes no answer. Several processes may sweep at once:
// each skips the rows that another holds. Fewer than limit means that none were left.
//
// If we die here: the statement is a transaction of its own. Either its rows are swept,
// or the next Sweep finds them.
// Test: TestSweep/rows_of_a_dead_sweep_are_swept_by_the_next.
func Sweep(ctx context.Context, q Querier, limit int) (int, error) {
	rows, _ := q.Query(ctx, sweepExpired, limit) // they have the error too
	swept, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("sweep expired idempotency keys: %w", err)
	}
	return len(swept), nil
}

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
	rows, _ := q.Query(ctx, selectEntries, scope, key) // they have the error too
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByName[Entry])
	if err != nil {
		return nil, fmt.Errorf("list the uses of an idempotency key: %w", err)
	}
	return entries, nil
}
