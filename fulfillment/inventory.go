package fulfillment

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

const insertReservation = `
-- fulfillment.insertReservation
insert into reservations
       (charge_id, merchant_id, sku, quantity)
values ($1, $2, $3, $4)`

const insertReservations = `
-- fulfillment.insertReservation
insert into reservations
       (charge_id, merchant_id, sku, quantity)
select *
  from unnest($1::text[], $2::text[], $3::text[], $4::bigint[])`

// moveStock adds to what is available, reserved and sold of an article.
const moveStock = `
-- fulfillment.moveStock
update stock
   set available = available + $3,
       reserved  = reserved + $4,
       sold      = sold + $5
 where merchant_id = $1
   and sku = $2`

const endReservations = `
-- fulfillment.endReservations
update reservations
   set status = $2
 where charge_id = $1`

// article is what a merchant sells.
type article struct{ merchant, sku string }

// reserve holds stock for the charge, or fails the charge. It reads the stock first: a
// refused commit costs the others in the group commit as well. The constraints refuse what
// is sold meanwhile, and reserve reads again.
//
// If we die here: before the commit nothing is held; the next worker runs the step again,
// or finds it done in the stream.
// Test: TestWalk in e2e.
func (f *Fulfillment) reserve(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
	var articles []article
	for _, item := range s.Charge.Items {
		articles = append(articles, article{s.Charge.MerchantID, item.SKU})
	}
	available, err := f.stock.Lookup(ctx, articles)
	if err != nil {
		return nil, fmt.Errorf("read the stock of %s: %w", s.ID, err)
	}
	for _, item := range ordered(s.Charge.Items) {
		switch left, known := available[article{s.Charge.MerchantID, item.SKU}]; {
		case !known:
			return s.Charge.RejectInventory(domain.UnknownSKU), nil
		case left < item.Quantity:
			return s.Charge.RejectInventory(domain.OutOfStock), nil
		}
	}
	return []domain.Event{domain.InventoryReserved{Items: s.Charge.Items}}, nil
}

// isOutOfStock reports whether the constraints refused a reservation: what was read as
// available is gone.
func isOutOfStock(err error) bool {
	refused := groupcommit.Constraint(err)
	return refused == "stock_available_not_negative" || refused == "reservations_known_sku"
}

// selectAvailable reads what is left of each article. The offset keeps the subquery a probe
// for each article.
const selectAvailable = `
-- fulfillment.selectAvailable
select asked.merchant_id,
       asked.sku,
       s.available
  from unnest($1::text[], $2::text[]) as asked(merchant_id, sku)
 cross join lateral (
       select available
         from stock
        where merchant_id = asked.merchant_id
          and sku = asked.sku
       offset 0) s`

// newStock reads what is available of each article that exists. The answers of one round
// trip are one map.
func newStock(q postgres.Querier) *postgres.Reads[[]article, map[article]int64] {
	return postgres.NewReads(maxReadsInFlight, func(ctx context.Context, asked [][]article) ([]map[article]int64, error) {
		var owners, skus []string
		for _, a := range slices.Concat(asked...) {
			owners, skus = append(owners, a.merchant), append(skus, a.sku)
		}
		rows, err := q.Query(ctx, selectAvailable, owners, skus)
		if err != nil {
			return nil, err
		}
		available := map[article]int64{}
		var a article
		var left int64
		_, err = pgx.ForEachRow(rows, []any{&a.merchant, &a.sku, &left}, func() error { available[a] = left; return nil })
		return slices.Repeat([]map[article]int64{available}, len(asked)), err
	})
}

// queueStock takes, sells and returns stock in the order of the articles, so that two charges
// for the same articles cannot deadlock.
func queueStock(b *pgx.Batch, c domain.Charge, e domain.Event) {
	var available, reserved, sold int64 // of each piece
	ended := ""                         // the state of the reservations
	switch e.(type) {
	case domain.InventoryReserved:
		available, reserved = -1, 1
	case domain.InventoryReleased:
		available, reserved, ended = 1, -1, "released"
	case domain.ChargeSucceeded:
		if c.StepStatus(domain.Inventory) != domain.StepDone {
			return
		}
		reserved, sold, ended = -1, 1, "sold"
	default:
		return
	}
	for _, item := range ordered(c.Items) {
		if ended == "" {
			b.Queue(insertReservation, c.ID, c.MerchantID, item.SKU, item.Quantity)
		}
		b.Queue(moveStock, c.MerchantID, item.SKU, available*item.Quantity, reserved*item.Quantity, sold*item.Quantity)
	}
	if ended != "" {
		b.Queue(endReservations, c.ID, ended)
	}
}

func ordered(items []domain.Item) []domain.Item {
	return slices.SortedFunc(slices.Values(items), func(a, b domain.Item) int { return cmp.Compare(a.SKU, b.SKU) })
}

// Writes are the statements of this package that may share a commit.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{
		{SQL: insertReservation, ManyRows: insertReservations},
		{SQL: endReservations, Locks: "reservations", Key: 1},
		{SQL: moveStock, Locks: "stock", Key: 2},
	}
}
