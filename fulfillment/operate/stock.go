package operate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Stock is what a merchant has of an article. Of what is on hand, charges have reserved a
// part, and the rest is available.
type Stock struct {
	Merchant  string `json:"merchant"`
	SKU       string `json:"sku"`
	OnHand    int64  `json:"on_hand"`
	Reserved  int64  `json:"reserved"`
	Available int64  `json:"available"`
	Sold      int64  `json:"sold"`
}

const stockColumns = `
       merchant_id          as merchant,
       sku,
       available + reserved as on_hand,
       reserved,
       available,
       sold`

const selectStock = `
-- operate.selectStock
select` + stockColumns + `
  from stock
 where $1 in ('', merchant_id)
   and $2 in ('', sku)
 order by merchant_id, sku`

// ListStock returns the articles of a merchant with a SKU, of all merchants or with any SKU
// where that is "".
func ListStock(ctx context.Context, q postgres.Querier, merchant, sku string) ([]Stock, error) {
	rows, _ := q.Query(ctx, selectStock, merchant, sku) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[Stock])
	if err != nil {
		return nil, fmt.Errorf("read the stock: %w", err)
	}
	return found, nil
}

const insertStock = `
-- operate.insertStock
insert into stock
       (merchant_id, sku, supplied, available)
values ($1, $2, $3, $3)
on conflict (merchant_id, sku) do nothing`

// Supply queues an article and its quantity. An article that exists stays as it is, and no
// row is affected.
func Supply(b *pgx.Batch, merchant, sku string, quantity int64) *pgx.QueuedQuery {
	return b.Queue(insertStock, merchant, sku, quantity)
}

const addStock = `
-- operate.addStock
update stock
   set supplied  = supplied + $3,
       available = available + $3
 where merchant_id = $1
   and sku = $2
returning` + stockColumns

// AddStock queues an addition to what is on hand of an article; below zero it takes away. The
// commit writes the article to changed, or nothing if there is no such article. The constraint
// stock_available_not_negative refuses to take what charges have reserved.
func AddStock(b *pgx.Batch, merchant, sku string, quantity int64, changed *[]Stock) {
	b.Queue(addStock, merchant, sku, quantity).Query(func(rows pgx.Rows) (err error) {
		*changed, err = pgx.CollectRows(rows, pgx.RowToStructByName[Stock])
		return err
	})
}
