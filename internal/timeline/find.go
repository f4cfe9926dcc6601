package timeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
)

// found is what an argument means: charges, and the uses of a key, which may
// have led to none.
type found struct {
	charges []string
	uses    []use
}

// use is one answer under one key.
type use struct {
	Scope      string // the merchant
	Operation  string
	Key        string
	StatusCode int
	Location   string
	CreatedAt  time.Time
	ExpiresAt  time.Time
}

// charge is the charge that the use led to, "" if none.
func (u use) charge() string {
	parts := strings.Split(u.Location, "/") // /v1/charges/{id} and deeper
	if len(parts) < 4 || parts[2] != "charges" {
		return ""
	}
	return parts[3]
}

// find takes the argument for a charge's id, else for a refund's, else for a key.
func find(ctx context.Context, q postgres.Querier, argument, merchant string) (found, error) {
	charges, err := ofName(ctx, q, selectCharge, argument, merchant)
	if err != nil {
		return found{}, err
	}
	if len(charges) == 0 && strings.HasPrefix(argument, "re_") {
		if charges, err = ofName(ctx, q, selectByRefund, argument, merchant); err != nil {
			return found{}, err
		}
	}
	if len(charges) > 0 {
		return found{charges: charges}, nil
	}
	uses, err := collect[use](ctx, q, "the uses of a key", selectUsesOfKey, argument, merchant)
	if err != nil {
		return found{}, err
	}
	for _, u := range uses {
		if id := u.charge(); id != "" && !slices.Contains(charges, id) {
			charges = append(charges, id)
		}
	}
	return found{charges: charges, uses: uses}, nil
}

const selectCharge = `
select stream_id
  from ledger_events
 where stream_id = $1
   and version = 1
   and (merchant_id = $2 or $2 = '')`

const selectByRefund = `
select stream_id
  from ledger_events
 where type like 'refund.requested.v%'
   and data ->> 'refund_id' = $1
   and (merchant_id = $2 or $2 = '')`

func ofName(ctx context.Context, q postgres.Querier, sql, name, merchant string) ([]string, error) {
	rows, err := q.Query(ctx, sql, name, merchant)
	if err != nil {
		return nil, fmt.Errorf("look for the charge: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for the charge: %w", err)
	}
	return ids, nil
}

// Merchants and operations are few and their keys are many, so this walks from
// one pair to the next and probes the primary key under each. The offset keeps
// the probe a probe.
const selectUsesOfKey = `
with recursive operations as (
  (select scope, operation
     from idempotency_keys
    where scope = $2 or $2 = ''
    order by scope, operation
    limit 1)
   union all
  select next.scope, next.operation
    from operations o
   cross join lateral (
         select k.scope, k.operation
           from idempotency_keys k
          where (k.scope, k.operation) > (o.scope, o.operation)
            and (k.scope = $2 or $2 = '')
          order by k.scope, k.operation
          limit 1) as next
)
select k.scope,
       k.operation,
       k.key,
       k.status_code,
       k.location,
       k.created_at,
       k.expires_at
  from operations o
 cross join lateral (
       select scope, operation, key, status_code, location, created_at, expires_at
         from idempotency_keys
        where scope = o.scope
          and operation = o.operation
          and key = $1
       offset 0) as k
 order by k.created_at, k.scope, k.operation`

const selectUsesOfCharges = `
select scope,
       operation,
       key,
       status_code,
       location,
       created_at,
       expires_at
  from idempotency_keys
 where scope = any($1)
   and location like '/v1/charges/%'
   and split_part(location, '/', 4) = any($2)
 order by created_at, scope, operation, key`

// uses shows the keys that were asked for, and all others that led to one of the
// charges.
func (r *reading) uses(ctx context.Context) error {
	var merchants []string
	for _, c := range r.t.Charges {
		merchants = append(merchants, c.MerchantID)
	}
	uses := r.keys
	if len(merchants) > 0 {
		others, err := collect[use](ctx, r.q, "the keys of a charge", selectUsesOfCharges, merchants, r.ids)
		if err != nil {
			return err
		}
		uses = append(uses, slices.DeleteFunc(others, func(o use) bool {
			return slices.ContainsFunc(r.keys, func(u use) bool {
				return u.Scope == o.Scope && u.Operation == o.Operation && u.Key == o.Key
			})
		})...)
	}
	for _, u := range uses {
		detail := map[string]any{
			"key": u.Key, "key_hash": idempotency.Hash(u.Key), "status_code": u.StatusCode, "expires_at": u.ExpiresAt.UTC(),
		}
		if u.Location != "" {
			detail["location"] = u.Location
		}
		r.add(Entry{At: u.CreatedAt, Kind: Key, ChargeID: u.charge(), What: u.Operation, Who: u.Scope, Detail: detail})
	}
	return nil
}
