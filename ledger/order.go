package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

const holdOrder = `
insert into held_orders
       (merchant_id, order_id, stream_id)
values ($1, $2, $3)`

// freeOrder ends the hold on an order. Only the charge that holds the order frees it.
const freeOrder = `
delete from held_orders
 where merchant_id = $1
   and order_id = $2
   and stream_id = $3`

// queueOrderHold queues what an event changes of the order of a charge that wants to be the only
// one: the request holds the order, and the failure frees it. held_orders_one_charge refuses a
// second charge for a held order with everything else in its commit.
func queueOrderHold(b *pgx.Batch, s Stream, e domain.Event) {
	if c := s.Charge; c.OneChargePerOrder {
		switch e.(type) {
		case domain.ChargeRequested:
			b.Queue(holdOrder, c.MerchantID, c.OrderID, s.ID)
		case domain.ChargeFailed:
			b.Queue(freeOrder, c.MerchantID, c.OrderID, s.ID)
		}
	}
}

const selectHolder = `
select stream_id
  from held_orders
 where merchant_id = $1
   and order_id = $2`

// LoadHolder reads the charge that holds an order. ErrNotFound if none does; the answer may be
// old by the time of a commit, which held_orders_one_charge decides.
func LoadHolder(ctx context.Context, q postgres.Querier, merchant, order string) (Stream, error) {
	var id string
	err := q.QueryRow(ctx, selectHolder, merchant, order).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Stream{}, fmt.Errorf("find the charge that holds an order: %w", err)
	}
	return Load(ctx, q, id)
}
