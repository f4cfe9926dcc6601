package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
)

// ErrNoCursor is returned by ListCharges for a charge to start after that the
// merchant does not have.
var ErrNoCursor = errors.New("no such charge to start after")

// ListQuery says which charges of a merchant are listed. OrderID and Status are
// not asked where they are empty.
type ListQuery struct {
	MerchantID    string
	OrderID       string
	Status        domain.Status
	StartingAfter string // the id of a charge; the newest is first where it is empty
	Limit         int    // charges of a page, at least 1
}

// ChargePage is a page of charges, each as View shows it, newest first.
type ChargePage struct {
	Data    []json.RawMessage `json:"data"`
	HasMore bool              `json:"has_more"`
}

// ListCharges reads a page of the projection. Charges are ordered by the time at
// which they were requested, and by id where that is the same. Neither ever
// changes, so whoever follows the pages sees each charge once that was listed when
// they began, whatever comes meanwhile.
//
// The list follows the ledger by some milliseconds: what was committed just now
// may be missing. A page costs what its charges cost, however many there are; with
// both an order and a status, what the charges of the order cost.
func ListCharges(ctx context.Context, r postgres.QuerierWith, q ListQuery) (ChargePage, error) {
	before := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	if q.StartingAfter != "" {
		var err error
		if before, err = requestedAt(ctx, r, q.MerchantID, q.StartingAfter); err != nil {
			return ChargePage{}, err
		}
	}
	sql, args := q.statement(before)
	rows, err := r.QueryWith(ctx, groupcommit.IndexScans(), sql, args...)
	if err != nil {
		return ChargePage{}, fmt.Errorf("list the charges of %s: %w", q.MerchantID, err)
	}
	views, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return ChargePage{}, fmt.Errorf("list the charges of %s: %w", q.MerchantID, err)
	}
	page := ChargePage{Data: make([]json.RawMessage, min(len(views), q.Limit)), HasMore: len(views) > q.Limit}
	for i := range page.Data {
		page.Data[i] = json.RawMessage(views[i])
	}
	return page, nil
}

// Of the ledger and not of the projection: a client may start after a charge that
// it has made just now.
const selectRequestedAt = `
select occurred_at
  from ledger_events
 where stream_id = $1
   and version = 1
   and merchant_id = $2`

func requestedAt(ctx context.Context, r postgres.QuerierWith, merchant, charge string) (pgtype.Timestamptz, error) {
	rows, err := r.QueryWith(ctx, groupcommit.IndexScans(), selectRequestedAt, charge, merchant)
	if err != nil {
		return pgtype.Timestamptz{}, fmt.Errorf("look for charge %s: %w", charge, err)
	}
	at, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[time.Time])
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoCursor
	}
	if err != nil {
		return pgtype.Timestamptz{}, fmt.Errorf("look for charge %s: %w", charge, err)
	}
	return pgtype.Timestamptz{Time: at, Valid: true}, nil
}

const selectPageOfAll = `
select view::text
  from charge_list
 where generation = (select generation from projections where state = 'live')
   and merchant_id = $1
   and (created_at, charge_id) < ($2, $3)
 order by created_at desc, charge_id desc
 limit $4`

// The status is a part of the order, and compared as a range, since of what is
// equal the order would not matter. So only charge_list_by_status has the order:
// where nearly all charges had the status when the planner last looked, it would
// walk along charge_list_by_time in search of one that hardly any has.
const selectPageByStatus = `
select view::text
  from charge_list
 where generation = (select generation from projections where state = 'live')
   and merchant_id = $1
   and (status, created_at, charge_id) < ($5, $2, $3)
   and status >= $5
 order by status desc, created_at desc, charge_id desc
 limit $4`

// As above, along the charges of the order, of which there are few. Coalesced, the
// status leads to no index.
const selectPageByOrder = `
select view::text
  from charge_list
 where generation = (select generation from projections where state = 'live')
   and merchant_id = $1
   and (order_id, created_at, charge_id) < ($5, $2, $3)
   and order_id >= $5
   and ($6 = '' or coalesce(status = $6, false))
 order by order_id desc, created_at desc, charge_id desc
 limit $4`

// statement asks for one charge more than the page, to know whether there is one.
func (q ListQuery) statement(before pgtype.Timestamptz) (sql string, args []any) {
	args = []any{q.MerchantID, before, q.StartingAfter, q.Limit + 1}
	switch {
	case q.OrderID != "":
		return selectPageByOrder, append(args, q.OrderID, string(q.Status))
	case q.Status != "":
		return selectPageByStatus, append(args, string(q.Status))
	}
	return selectPageOfAll, args
}
