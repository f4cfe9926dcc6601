package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Action is something that an operator did. After are values of the row, without keys and
// secrets, Before those that changed.
type Action struct {
	Number   int64           `json:"id"`
	At       time.Time       `json:"at"`    // UTC in database time
	Actor    string          `json:"actor"` // as the program names its user
	Login    string          `json:"login"` // the database user
	Action   string          `json:"action"`
	Subject  string          `json:"subject"`
	Merchant string          `json:"merchant"` // "" if the action is not one merchant's
	Before   json.RawMessage `json:"before"`   // null: the row was new
	After    json.RawMessage `json:"after"`
}

const selectActions = `
-- audit.selectActions
select action_id                          as number,
       acted_at at time zone 'UTC'        as at,
       actor,
       login,
       action,
       subject,
       coalesce(merchant_id, '')          as merchant,
       coalesce(before, 'null')           as before,
       after
  from operator_actions
 where $1 in ('', merchant_id)
   and acted_at >= $2
 order by action_id desc
 limit $3`

// ListActions returns the newest actions since a time, newest first, at most limit: those
// about a merchant, or all if merchant is "".
func ListActions(ctx context.Context, q postgres.Querier, merchant string, since time.Time, limit int) ([]Action, error) {
	return collect[Action](ctx, q, "operators' actions", selectActions, merchant, since, limit)
}

const setReason = `
-- audit.setReason
select set_config('payonce.reason', $1, true),
       set_config('payonce.action_id', $2, true)`

// Explain queues the reason and the id of the actions that are queued behind it in the same
// batch; "" for none. A supply of stock whose id an earlier one of the article has is refused
// by operator_actions_one_supply. They are not settings of the session: a pooler may drop those,
// and no check would notice, so a repeated command would add twice.
func Explain(b *pgx.Batch, reason, id string) { b.Queue(setReason, reason, id) }

const selectSupply = `
-- audit.selectSupply
select (after ->> 'supplied')::bigint - (before ->> 'supplied')::bigint
  from operator_actions
 where action = 'stock supply'
   and merchant_id = $1
   and subject = $2
   and (after ->> 'id') collate "C" = $3`

// FindSupply returns by how much the supply of an article that has an id changed what was supplied.
func FindSupply(ctx context.Context, q postgres.Querier, merchant, sku, id string) (change int64, err error) {
	if err := q.QueryRow(ctx, selectSupply, merchant, sku, id).Scan(&change); err != nil {
		return 0, fmt.Errorf("read the supply %q of %s: %w", id, sku, err)
	}
	return change, nil
}
