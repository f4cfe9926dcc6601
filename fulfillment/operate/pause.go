package operate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/postgres"
)

// Pause is what operators have paused: a receiver, or everything of a merchant.
type Pause struct {
	What     string `json:"what"` // a receiver's name, or PausedMerchant
	Merchant string `json:"merchant,omitempty"`
}

// PausedMerchant is the What of a merchant's pause.
const PausedMerchant = "merchant"

// ListPauses returns what is paused.
func ListPauses(ctx context.Context, q postgres.Querier) ([]Pause, error) {
	rows, _ := q.Query(ctx, `-- operate.ListPauses
select what, merchant_id as merchant from pauses where paused order by what, merchant_id`) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[Pause])
	if err != nil {
		return nil, fmt.Errorf("read what is paused: %w", err)
	}
	return all, nil
}

const (
	insertPause = `
-- operate.insertPause
insert into pauses (what, merchant_id, paused)
select what, $2, true
  from unnest($1::text[]) as u(what)
 where $2 = '' or exists (select from merchants where merchant_id = $2)
    on conflict (what, merchant_id) do update
   set paused = true`
	endPause = `
-- operate.endPause
update pauses
   set paused = false
 where what = any ($1)
   and merchant_id = $2`
)

// SetPause queues a pause or its end, which may both be repeated. Resends pause with first
// deliveries. The commit sets known: whether there is the merchant, or the pause that ends.
func SetPause(b *pgx.Batch, p Pause, paused bool, known *bool) {
	what := []string{p.What}
	if p.What == fulfillment.NotificationReceiver {
		what = append(what, fulfillment.ResendReceiver)
	}
	change := endPause
	if paused {
		change = insertPause
	}
	b.Queue(change, what, p.Merchant).Exec(func(tag pgconn.CommandTag) error {
		*known = tag.RowsAffected() > 0
		return nil
	})
}
