package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

// ErrUnknownStartingAfter is returned by ListCharges for a StartingAfter that is no charge of the
// merchant.
var ErrUnknownStartingAfter = errors.New("no such charge to start after")

// ListQuery says which charges of a merchant to list.
type ListQuery struct {
	MerchantID    string
	OrderID       string        // empty for all
	Status        domain.Status // empty for all
	StartingAfter string        // the id of a charge; empty to start with the newest one
	Limit         int           // charges of a page, at least 1
}

// Page is a page of a list.
type Page struct {
	Data    []json.RawMessage `json:"data"`
	HasMore bool              `json:"has_more"`

	limit, size int
}

// MaxPage is how many bytes a page has at most, unless its only entry has more.
const MaxPage = 1 << 20

func newPage(limit int) Page { return Page{Data: []json.RawMessage{}, limit: limit} }

// add appends an entry, unless the page is full: then the list has more.
func (p *Page) add(entry json.RawMessage) bool {
	p.size += len(entry)
	if p.HasMore = p.HasMore || len(p.Data) == p.limit || p.size > MaxPage && len(p.Data) > 0; !p.HasMore {
		p.Data = append(p.Data, slices.Clone(entry))
	}
	return !p.HasMore
}

// ListCharges reads a page of the list of charges, of Limit charges or MaxPage bytes, each as View
// shows it, newest first. The order
// is the time of the request, then the id. Neither changes, so a client that follows the pages
// sees each charge once that was listed when it began, whatever is requested meanwhile.
// ErrUnknownStartingAfter if StartingAfter is no charge of the merchant.
//
// The list follows the ledger by some milliseconds: what was committed just now may be
// missing. A page costs what its charges cost, however many the list has. With both an
// order and a status it costs what the charges of the order cost.
func ListCharges(ctx context.Context, r postgres.Querier, q ListQuery) (Page, error) {
	before := "infinity"
	if q.StartingAfter != "" {
		times, err := collectValues[string](r.Query(ctx, selectRequestTime, q.StartingAfter, q.MerchantID))
		if err == nil && len(times) == 0 {
			err = ErrUnknownStartingAfter
		}
		if err != nil {
			return Page{}, fmt.Errorf("list charges after %s: %w", q.StartingAfter, err)
		}
		before = times[0]
	}
	sql, args := selectCharges, []any{q.MerchantID, before, q.StartingAfter, q.Limit + 1} // one more than the page
	switch {
	case q.OrderID != "":
		sql, args = selectChargesOfOrder, append(args, q.OrderID, string(q.Status))
	case q.Status != "":
		sql, args = selectChargesByStatus, append(args, string(q.Status))
	}
	page := newPage(q.Limit)
	var view json.RawMessage
	rows, _ := r.Query(ctx, sql, args...) // rows have its error
	_, err := pgx.ForEachRow(rows, []any{&view}, func() error {
		page.add(view)
		return nil
	})
	if err != nil {
		return Page{}, fmt.Errorf("list the charges of %s: %w", q.MerchantID, err)
	}
	return page, nil
}

// selectRequestTime reads the ledger, not the list: a client may start after a charge that
// it has made just now.
const selectRequestTime = `
select occurred_at::text
  from ledger_events
 where stream_id = $1
   and version = 1
   and merchant_id = $2`

const selectListed = `
select view
  from charge_list
 where generation = (select generation from projections where state = 'live')
   and merchant_id = $1`

const selectCharges = selectListed + `
   and (created_at, charge_id) < ($2, $3)
 order by created_at desc, charge_id desc
 limit $4`

// selectChargesByStatus orders by the status too, and compares it as a range, since the
// planner drops what is equal from an order. So only charge_list_by_status has the order.
// Otherwise the planner would search along charge_list_by_time for a status that hardly
// any charge has, where nearly all had it when it last looked.
const selectChargesByStatus = selectListed + `
   and (status, created_at, charge_id) < ($5, $2, $3)
   and status >= $5
 order by status desc, created_at desc, charge_id desc
 limit $4`

// selectChargesOfOrder does the same with the order id. An order has few charges, so the
// coalesce keeps the planner from the index of the status.
const selectChargesOfOrder = selectListed + `
   and (order_id, created_at, charge_id) < ($5, $2, $3)
   and order_id >= $5
   and ($6 = '' or coalesce(status = $6, false))
 order by order_id desc, created_at desc, charge_id desc
 limit $4`
