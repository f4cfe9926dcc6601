package books

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
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

// add appends an entry, which the page keeps, unless the page is full: then the list has more.
func (p *Page) add(entry json.RawMessage) bool {
	p.size += len(entry)
	if p.HasMore = p.HasMore || len(p.Data) == p.limit || p.size > MaxPage && len(p.Data) > 0; !p.HasMore {
		p.Data = append(p.Data, entry)
	}
	return !p.HasMore
}

// ChargePage is a page of charges. Next is the charge to start after for the next page, empty on the
// last one. A page may be short, and even empty, and yet not the last one.
type ChargePage struct {
	Page

	Next string `json:"next,omitempty"`
}

// What one page reads at most, whatever the status is.
const (
	maxFolded  = 1000 // charges
	maxScanned = 5000 // charges of which only the outcome is looked for
)

// marks are the events of which a charge with a status that few charges have has one: those of the index
// ledger_events_marking_a_status.
var marks = map[domain.Status][]string{
	domain.Failed:            {"charge.failed.v1"},
	domain.RequiresAction:    {"payment.action_required.v1"},
	domain.PartiallyRefunded: {"refund.succeeded.v1", "refund.observed.v1"},
	domain.Refunded:          {"refund.succeeded.v1", "refund.observed.v1"},
}

// ListCharges reads a page of a merchant's charges, of Limit charges or MaxPage bytes, each as View shows
// it, newest first. The order is that of the ids, which begin with the time of the request and never
// change: a client that follows the pages sees each charge once that was listed when it began. Everything
// committed is listed, except a charge that this program cannot read, or whose request is void. r reads as
// the merchant. ErrUnknownStartingAfter if StartingAfter is no charge of the merchant.
//
// A page costs what its charges cost, however many there are. With a status it folds maxFolded charges at
// most. Nothing marks a pending charge: its page looks through maxScanned charges.
func ListCharges(ctx context.Context, r postgres.Querier, q ListQuery) (ChargePage, error) {
	page, before := ChargePage{Page: newPage(q.Limit)}, "\U0010FFFF"
	var err error
	if q.StartingAfter != "" {
		var owner ledger.Owner
		before = q.StartingAfter
		if owner, err = ledger.Find(ctx, r, before); errors.Is(err, ledger.ErrNotFound) || err == nil && owner.MerchantID != q.MerchantID {
			err = ErrUnknownStartingAfter
		}
	}
	for folded, n := 0, q.Limit+1; err == nil; n = min(2*n, maxFolded-folded) { // one more than the page
		var ids []string
		if ids, before, err = q.candidates(ctx, r, before, n); err == nil {
			err = page.addCharges(ctx, r, ids, q)
		}
		folded += len(ids)
		switch full := len(page.Data) == q.Limit; {
		case err != nil:
		case page.HasMore: // Next is the last charge of the page
			return page, nil
		case before == "":
			page.Next = ""
			return page, nil
		case full, len(ids) < n, folded >= maxFolded:
			page.HasMore = true
			if !full {
				page.Next = before
			}
			return page, nil
		}
	}
	return ChargePage{}, fmt.Errorf("list the charges of %s: %w", q.MerchantID, err)
}

// addCharges adds those of some charges that have the status, until the page is full. Next is the last
// one.
func (p *ChargePage) addCharges(ctx context.Context, r postgres.Querier, ids []string, q ListQuery) error {
	return ledger.Each(ctx, r, ids, func(s ledger.Stream, unreadable error) bool {
		if unreadable != nil || s.Charge.MerchantID != q.MerchantID || q.Status != "" && s.Charge.Status != q.Status {
			return true
		}
		view, _ := json.Marshal(s.View()) // texts, numbers and times have no error
		if !p.add(view) {
			return false
		}
		p.Next = s.ID
		return true
	})
}

// candidates reads the ids of n charges at most that may be listed, and the id behind which the next ones
// begin: "" at the end.
func (q ListQuery) candidates(ctx context.Context, r postgres.Querier, before string, n int) (ids []string, next string, err error) {
	switch marked := marks[q.Status]; {
	case q.OrderID != "":
		ids, err = collectValues[string](r.Query(ctx, selectOfOrder, q.MerchantID, before, n, q.OrderID))
	case marked != nil:
		ids, err = collectValues[string](r.Query(ctx, selectMarked, q.MerchantID, before, n, marked))
	case q.Status == domain.Pending:
		err = r.QueryRow(ctx, selectOpen, q.MerchantID, before, n, maxScanned).Scan(&ids, &next)
	default:
		ids, err = collectValues[string](r.Query(ctx, selectListed, q.MerchantID, before, n))
	}
	if err == nil && len(ids) == n {
		return ids, ids[n-1], nil
	}
	return ids, next, err
}

// The order of each statement is that of its index, and what is equal is compared as a range, since
// the planner drops what is equal from an order: otherwise it would read another index where
// statistics say that hardly any charge is the merchant's. Of a first event these statements say that it
// has no previous version, and all others that it has version 1: those never read these indexes.
const (
	listed = `
  from ledger_events
 where (merchant_id, stream_id) < ($1, $2)
   and merchant_id >= $1
   and previous_version is null
 order by merchant_id desc, stream_id desc`

	selectListed = `
-- books.selectListed
select stream_id` + listed + `
 limit $3`

	// selectOpen reads the first $3 of $4 charges that have no outcome, and the last charge that it looks at,
	// '' where there are fewer than $4. Each charge costs a probe of ledger_events_one_outcome.
	selectOpen = `
-- books.selectOpen
with looked as materialized (
  select stream_id` + listed + `
   limit $4
)
select array(
         select stream_id
           from looked
          where not exists (
                  select
                    from ledger_events o
                   where o.stream_id = looked.stream_id
                     and (o.type like 'charge.succeeded.v%' or o.type like 'charge.failed.v%')
                  offset 0)
          limit $3),
       coalesce((select min(stream_id) from looked having count(*) = $4), '')`

	selectOfOrder = `
-- books.selectOfOrder
select stream_id
  from ledger_events
 where (merchant_id, order_id, stream_id) < ($1, $4, $2)
   and merchant_id >= $1
   and order_id >= $4
   and previous_version is null
 order by merchant_id desc, order_id desc, stream_id desc
 limit $3`

	selectMarked = `
-- books.selectMarked
select distinct on (merchant_id, stream_id)
       stream_id
  from ledger_events
 where (merchant_id, stream_id) < ($1, $2)
   and merchant_id >= $1
   and type in ('charge.failed.v1', 'payment.action_required.v1', 'refund.succeeded.v1', 'refund.observed.v1')
   and type = any ($4)
 order by merchant_id desc, stream_id desc
 limit $3`
)
