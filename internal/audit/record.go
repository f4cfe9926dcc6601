package audit

import (
	"github.com/jackc/pgx/v5"
)

// What an audit looked at.
const (
	ScopeTables   = "tables"   // what our own tables show
	ScopeProvider = "provider" // the reconciliation with the provider
)

const upsertResult = `
insert into audit_results
       (scope, checked, violated)
values ($1, $2, $3)
on conflict (scope) do update
   set checked     = excluded.checked,
       violated    = excluded.violated,
       finished_at = excluded.finished_at`

// Record queues the result of an audit that came to its end, in place of the last
// one of its scope: it is what the worker's metrics tell of it. Nothing else rests
// on it.
func Record(b *pgx.Batch, scope string, checks ...Check) {
	var checked, violated int64
	for _, c := range checks {
		checked += c.Checked
		violated += c.Violated
	}
	b.Queue(upsertResult, scope, checked, violated)
}
