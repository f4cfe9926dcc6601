package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
)

// page is a part of the ledger, folded: what the projections hold differently
// behind it.
type page struct {
	until    checkpoint // where they stand then
	events   int
	full     bool // there may be more
	charges  []listed
	balances []movement
}

// listed is a charge's row of charge_list. All of it comes from its events.
type listed struct {
	ChargeID   string
	MerchantID string
	OrderID    string
	Status     string
	CreatedAt  time.Time
	Version    int
	View       string // JSON
}

// movement is what the postings of a page add to an account.
type movement struct {
	MerchantID string
	Account    string
	Debits     int64
	Credits    int64
}

// An output column that were called txid or position and were no such column of
// the table would be what the rows are ordered by.
const selectPage = `
select e.txid,
       e.position,
       e.stream_id,
       e.version
  from ledger_events e
 where (e.txid, e.position) > ($1, $2)
   and (e.txid, e.position) <= ($3, $4)
   and e.txid < pg_snapshot_xmin(pg_current_snapshot())
 order by e.txid, e.position
 limit $5`

// readPage reads and folds the events that follow a checkpoint, up to and
// including last. What it has read of the log is behind the oldest transaction
// under way, so nothing will ever come between.
func readPage(ctx context.Context, db *postgres.DB, after, last checkpoint) (page, error) {
	for most := foldAtOnce; ; most = max(1, most/4) {
		p, err := readPageOf(ctx, db, after, last, most)
		if !errors.Is(err, errLongStreams) {
			return p, err
		}
	}
}

func readPageOf(ctx context.Context, db *postgres.DB, after, last checkpoint, most int) (page, error) {
	rows, err := db.QueryWith(ctx, groupcommit.IndexScans(), selectPage,
		after.Txid, after.Position, last.Txid, last.Position, most)
	if err != nil {
		return page{}, fmt.Errorf("read the log: %w", err)
	}
	type entry struct {
		Txid     uint64
		Position int64
		StreamID string
		Version  int
	}
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByName[entry])
	if err != nil {
		return page{}, fmt.Errorf("read the log: %w", err)
	}
	p := page{until: after, events: len(entries), full: len(entries) == most}
	if p.events == 0 {
		return p, nil
	}
	streams, versions := make([]string, len(entries)), make([]int, len(entries))
	for i, e := range entries {
		streams[i], versions[i] = e.StreamID, e.Version
		p.until.Txid, p.until.Position = e.Txid, e.Position
		p.until.Highest = max(p.until.Highest, e.Position)
	}
	if p.charges, err = foldCharges(ctx, db, streams, p.until); err != nil {
		return page{}, err
	}
	if p.balances, err = sumPostings(ctx, db, streams, versions); err != nil {
		return page{}, err
	}
	return p, nil
}

// Coalesced, the checkpoint leads to no index. The planner would take the log's for
// a page of many charges where it knows nothing of the table, and read all of it.
const selectStreams = `
select stream_id,
       event_id,
       version,
       type,
       data,
       occurred_at,
       recorded_at
  from ledger_events
 where stream_id = any($1)
   and coalesce((txid, position) <= ($2, $3), false)
 order by stream_id, version`

var errLongStreams = errors.New("the streams of a page are too long for one commit")

// foldCharges folds whole streams, as far as a checkpoint. So a row depends on
// nothing but the events up to there, whatever pages they were read in. Of several
// streams it reads no more than foldBytes, or it is errLongStreams.
func foldCharges(ctx context.Context, db *postgres.DB, streams []string, until checkpoint) ([]listed, error) {
	rows, err := db.QueryWith(ctx, groupcommit.IndexScans(), selectStreams, streams, until.Txid, until.Position)
	if err != nil {
		return nil, fmt.Errorf("read the streams of a page: %w", err)
	}
	var e eventRow
	var events []eventRow
	bytes := 0
	_, err = pgx.ForEachRow(rows, append([]any{&e.streamID}, e.columns()...), func() error {
		events = append(events, e)
		if bytes += len(e.Data); bytes > foldBytes && e.streamID != events[0].streamID {
			return errLongStreams
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the streams of a page: %w", err)
	}
	var charges []listed
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].streamID == events[0].streamID {
			n++
		}
		s, err := replay(events[0].streamID, events[:n])
		if err != nil {
			return nil, err
		}
		charge, err := s.listed()
		if err != nil {
			return nil, err
		}
		charges = append(charges, charge)
		events = events[n:]
	}
	return charges, nil
}

func (s Stream) listed() (listed, error) {
	v := s.View()
	view, err := json.Marshal(v)
	if err != nil {
		return listed{}, fmt.Errorf("show %s: %w", s.ID, err)
	}
	return listed{
		ChargeID: s.ID, MerchantID: s.Charge.MerchantID, OrderID: v.OrderID, Status: string(v.Status),
		CreatedAt: v.CreatedAt, Version: s.Charge.Version, View: string(view),
	}, nil
}

// The offset keeps the subquery a probe for each event. As a join it was planned,
// where nobody had seen a posting yet, to read all of them for every page.
const selectMovements = `
with postings as (
  select p.merchant_id,
         p.debit,
         p.credit,
         p.amount
    from unnest($1::text[], $2::int[]) as e(stream_id, version)
   cross join lateral (
         select merchant_id, debit, credit, amount
           from ledger_postings
          where stream_id = e.stream_id
            and version = e.version
         offset 0) p
), legs as (
  select merchant_id,
         debit  as account,
         amount as debits,
         0      as credits
    from postings
   union all
  select merchant_id,
         credit,
         0,
         amount
    from postings
)
select merchant_id,
       account,
       sum(debits)::bigint  as debits,
       sum(credits)::bigint as credits
  from legs
 group by merchant_id, account
 order by merchant_id, account`

func sumPostings(ctx context.Context, db *postgres.DB, streams []string, versions []int) ([]movement, error) {
	rows, err := db.QueryWith(ctx, groupcommit.IndexScans(), selectMovements, streams, versions)
	if err != nil {
		return nil, fmt.Errorf("read the postings of a page: %w", err)
	}
	movements, err := pgx.CollectRows(rows, pgx.RowToStructByName[movement])
	if err != nil {
		return nil, fmt.Errorf("read the postings of a page: %w", err)
	}
	return movements, nil
}

const upsertCharges = `
insert into charge_list
       (generation, charge_id, merchant_id, order_id, status, created_at, version, view)
select $1, charge_id, merchant_id, order_id, status, created_at, version, view::json
  from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::int[], $8::text[])
    as c(charge_id, merchant_id, order_id, status, created_at, version, view)
    on conflict (generation, charge_id) do update
   set merchant_id = excluded.merchant_id,
       order_id    = excluded.order_id,
       status      = excluded.status,
       created_at  = excluded.created_at,
       version     = excluded.version,
       view        = excluded.view`

const upsertBalances = `
insert into account_balances as a
       (generation, merchant_id, account, debits, credits)
select $1, merchant_id, account, debits, credits
  from unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[])
    as m(merchant_id, account, debits, credits)
    on conflict (generation, merchant_id, account) do update
   set debits  = a.debits + excluded.debits,
       credits = a.credits + excluded.credits`

// write queues the rows of a page. They are right only in the commit that moves
// the checkpoint behind it: balances grow by what the page adds.
func (p page) write(b *pgx.Batch) {
	n := len(p.charges)
	ids, merchants, orders, statuses := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	times, versions, views := make([]time.Time, n), make([]int, n), make([]string, n)
	for i, c := range p.charges {
		ids[i], merchants[i], orders[i], statuses[i] = c.ChargeID, c.MerchantID, c.OrderID, c.Status
		times[i], versions[i], views[i] = c.CreatedAt, c.Version, c.View
	}
	b.Queue(upsertCharges, p.until.Generation, ids, merchants, orders, statuses, times, versions, views)

	n = len(p.balances)
	owners, accounts, debits, credits := make([]string, n), make([]string, n), make([]int64, n), make([]int64, n)
	for i, m := range p.balances {
		owners[i], accounts[i], debits[i], credits[i] = m.MerchantID, m.Account, m.Debits, m.Credits
	}
	b.Queue(upsertBalances, p.until.Generation, owners, accounts, debits, credits)
}
