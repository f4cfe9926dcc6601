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

// reserveInventory holds stock for the charge, or fails the charge.
//
// If we die here: before the commit nothing is held, and the step runs again;
// after it the stream says that stock is held, and the step is skipped.
// Test: e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (w *walk) reserveInventory(ctx context.Context) error {
	if w.s.Charge.Step(domain.Inventory) != domain.StepPending {
		return nil
	}
	lacking, err := w.lacking(ctx)
	if err != nil {
		return err
	}
	if lacking != "" {
		return w.commit(ctx, domain.RejectInventory{Code: lacking})
	}
	err = w.commit(ctx, domain.ReserveInventory{}, reserve)
	switch postgres.Constraint(err) {
	case "stock_available_not_negative":
		return w.commit(ctx, domain.RejectInventory{Code: domain.OutOfStock})
	case "reservations_known_sku":
		return w.commit(ctx, domain.RejectInventory{Code: domain.UnknownSKU})
	}
	return err
}

// lacking is why the charge cannot be reserved now, "" if it can. A commit that is
// refused costs those that share it as well, so stock that is gone is looked for
// before. What goes meanwhile the constraints refuse.
func (w *walk) lacking(ctx context.Context) (domain.FailureCode, error) {
	c := w.s.Charge
	items := ordered(c.Items)
	asked := make([]article, len(items))
	for i, item := range items {
		asked[i] = article{c.MerchantID, item.SKU}
	}
	available, err := w.Reader.available(ctx, asked)
	if err != nil {
		return "", fmt.Errorf("look for the stock of %s: %w", w.s.ID, err)
	}
	for i, item := range items {
		switch {
		case available[i] < 0:
			return domain.UnknownSKU, nil
		case available[i] < item.Quantity:
			return domain.OutOfStock, nil
		}
	}
	return "", nil
}

// reserve takes in one order of articles, so that two charges for the same ones
// cannot deadlock.
func reserve(b *pgx.Batch, c domain.Charge) {
	for _, item := range ordered(c.Items) {
		b.Queue(insertReservation, c.ID, c.MerchantID, item.SKU, item.Quantity)
		b.Queue(takeStock, c.MerchantID, item.SKU, item.Quantity)
	}
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

// sell turns what the charge holds into a sale.
func sell(b *pgx.Batch, c domain.Charge) { end(b, c, sellStock, "sold") }

// giveBack is the compensation of reserve.
func giveBack(b *pgx.Batch, c domain.Charge) { end(b, c, returnStock, "released") }

func end(b *pgx.Batch, c domain.Charge, move, status string) {
	if c.Step(domain.Inventory) != domain.StepDone {
		return
	}
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

// Supply queues an article and how many there are of it. An article that is
// kept already stays as it is.
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
