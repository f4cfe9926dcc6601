package fulfillment

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/ledger"
)

const insertReservation = `
insert into reservations
       (charge_id, merchant_id, sku, quantity)
values ($1, $2, $3, $4)`

const takeStock = `
update stock
   set available = available - $3,
       reserved  = reserved + $3
 where merchant_id = $1
   and sku = $2`

// inventory holds stock for the charge, or fails the charge.
//
// If we die here: before the commit nothing is held; the next worker runs the step again,
// or finds it done in the stream.
// Test: e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
type inventory struct{ reader *Reader }

func (inventory) name() string { return domain.Inventory }

// run reads the stock before it reserves: a refused commit costs the others in the group
// commit as well. The constraints refuse what is sold meanwhile.
func (i inventory) run(ctx context.Context, s ledger.Stream) (decision, error) {
	items := ordered(s.Charge.Items)
	asked := make([]article, len(items))
	for n, item := range items {
		asked[n] = article{s.Charge.MerchantID, item.SKU}
	}
	available, err := i.reader.available(ctx, asked)
	if err != nil {
		return decision{}, fmt.Errorf("read the stock of %s: %w", s.ID, err)
	}
	for n, item := range items {
		switch {
		case available[n] < 0:
			return decision{command: domain.RejectInventory{Code: domain.UnknownSKU}}, nil
		case available[n] < item.Quantity:
			return decision{command: domain.RejectInventory{Code: domain.OutOfStock}}, nil
		}
	}
	return decision{command: domain.ReserveInventory{}, instead: map[string]domain.Command{
		"stock_available_not_negative": domain.RejectInventory{Code: domain.OutOfStock},
		"reservations_known_sku":       domain.RejectInventory{Code: domain.UnknownSKU},
	}}, nil
}

const sellStock = `
update stock
   set reserved = reserved - $3,
       sold     = sold + $3
 where merchant_id = $1
   and sku = $2`

const returnStock = `
update stock
   set reserved  = reserved - $3,
       available = available + $3
 where merchant_id = $1
   and sku = $2`

const endReservations = `
update reservations
   set status = $2
 where charge_id = $1`

// keep takes, sells and returns stock in the order of the articles, so that two charges
// for the same articles cannot deadlock.
func (inventory) keep(b *pgx.Batch, c domain.Charge, e domain.Event) {
	switch e := e.(type) {
	case domain.InventoryReserved:
		for _, item := range ordered(e.Items) {
			b.Queue(insertReservation, c.ID, c.MerchantID, item.SKU, item.Quantity)
			b.Queue(takeStock, c.MerchantID, item.SKU, item.Quantity)
		}
	case domain.InventoryReleased:
		endReservation(b, c, returnStock, "released")
	case domain.ChargeSucceeded:
		if c.Step(domain.Inventory) == domain.StepDone {
			endReservation(b, c, sellStock, "sold")
		}
	}
}

func endReservation(b *pgx.Batch, c domain.Charge, move, status string) {
	for _, item := range ordered(c.Items) {
		b.Queue(move, c.MerchantID, item.SKU, item.Quantity)
	}
	b.Queue(endReservations, c.ID, status)
}

func ordered(items []domain.Item) []domain.Item {
	return slices.SortedFunc(slices.Values(items), func(a, b domain.Item) int { return cmp.Compare(a.SKU, b.SKU) })
}

const insertStock = `
insert into stock
       (merchant_id, sku, supplied, available)
values ($1, $2, $3, $3)
on conflict (merchant_id, sku) do nothing`

// Supply queues an article and its quantity. An article that exists stays as it is.
func Supply(b *pgx.Batch, merchant, sku string, quantity int64) {
	b.Queue(insertStock, merchant, sku, quantity)
}

// Writes are the statements of this package that may share a commit.
func Writes() []groupcommit.Statement {
	ofStock := func(sql string) groupcommit.Statement {
		return groupcommit.Statement{SQL: sql, Table: "stock", Row: groupcommit.ByText}
	}
	return []groupcommit.Statement{
		groupcommit.Insert(insertReservation, "%s", "%s", "%s", "%s"),
		{SQL: endReservations, Table: "reservations", Row: func(a []any) groupcommit.Row { return groupcommit.ByText(a[:1]) }},
		ofStock(takeStock), ofStock(sellStock), ofStock(returnStock),
	}
}
