package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
)

// checkpoint is how far a generation of the projections has folded the ledger: every event up
// to and including (Txid, Position).
type checkpoint struct {
	Generation int64
	Txid       uint64
	Position   int64
	Highest    int64 // position of a folded event
	Batch      int64 // every commit that moves the checkpoint raises it
}

// end is a checkpoint behind every event.
func end() checkpoint { return checkpoint{Txid: math.MaxUint64, Position: math.MaxInt64} }

// live is the checkpoint of the live generation and what the ledger has for it.
type live struct {
	checkpoint

	Behind   bool // events are not folded
	Waiting  bool // some of them can be folded: no older transaction is open
	Restored bool // the tables come from a dump and are not repaired
}

// selectLive reads the checkpoint of the live projections. While positions are those of
// another server, nothing is folded before a repair: it would leave out what is committed
// below the checkpoint.
const selectLive = `
select p.generation,
       p.txid,
       p.position,
       p.highest,
       p.batch,
       n.own and exists (
         select
           from ledger_events e
          where (e.txid, e.position) > (p.txid, p.position)) as behind,
       n.own and exists (
         select
           from ledger_events e
          where (e.txid, e.position) > (p.txid, p.position)
            and e.txid < pg_snapshot_xmin(pg_current_snapshot())) as waiting,
       not (n.own and p.txid < pg_snapshot_xmax(pg_current_snapshot())) as restored
  from projections p
 cross join numbering n
 where p.state = 'live'`

// readLive reads the live checkpoint. The cost does not depend on the length of the ledger.
func readLive(ctx context.Context, db *postgres.DB) (live, error) {
	rows, _ := db.Query(ctx, selectLive) // they have the error too
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[live])
	if err != nil {
		return live{}, fmt.Errorf("read the checkpoint of the projections: %w", err)
	}
	return found, nil
}

// pageEvents bounds a page, which is one commit. While its transaction is open, the feed stays
// below it.
const pageEvents = 2500

// page is a part of the ledger, folded.
type page struct {
	until    checkpoint // behind the page
	full     bool       // the ledger may have more
	streams  []string   // of each event
	versions []int      // of each event
	charges  []listedCharge
	aside    []setAside
}

// setAside is a charge that cannot be read, or not listed.
type setAside struct {
	ChargeID string `json:"charge_id"`
	Reason   string `json:"reason"`
}

// listedCharge is a row of charge_list. It depends on the events of the charge alone.
type listedCharge struct {
	Generation int64         `json:"generation"`
	ChargeID   string        `json:"charge_id"`
	MerchantID string        `json:"merchant_id"`
	OrderID    string        `json:"order_id"`
	Status     domain.Status `json:"status"`
	CreatedAt  time.Time     `json:"created_at"`
	Version    int           `json:"version"`
	View       domain.View   `json:"view"`
}

// selectPage reads the events between two checkpoints. Columns keep their types and names: the
// order is that of the output columns.
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

// readPage reads and folds the events that follow a checkpoint, up to and including last, and
// at most limit of them. It stays below the oldest open transaction, so no event will appear
// between those that it reads. A page whose streams are too long is read again with a quarter
// of its events.
func readPage(ctx context.Context, db *postgres.DB, after, last checkpoint, limit int) (page, error) {
	type entry struct {
		Txid     uint64
		Position int64
		StreamID string
		Version  int
	}
	for ; ; limit = max(1, limit/4) {
		entries, err := collect[entry](db.Query(ctx, selectPage,
			after.Txid, after.Position, last.Txid, last.Position, limit))
		if err != nil {
			return page{}, fmt.Errorf("read the ledger: %w", err)
		}
		p := page{until: after, full: len(entries) == limit}
		for _, e := range entries {
			p.streams, p.versions = append(p.streams, e.StreamID), append(p.versions, e.Version)
			p.until.Txid, p.until.Position = e.Txid, e.Position
			p.until.Highest = max(p.until.Highest, e.Position)
		}
		if len(entries) == 0 {
			return p, nil
		}
		if p.charges, p.aside, err = foldCharges(ctx, db, p.streams, p.until); !errors.Is(err, errLong) {
			return p, err
		}
	}
}

// selectUntil reads streams up to a position of the ledger. The coalesce keeps the planner from the
// index of the order: it would read the whole ledger where it knows nothing of the table.
const selectUntil = selectStored + `
   and coalesce((txid, position) <= ($2, $3), false)
 order by stream_id, version`

// foldCharges folds whole streams up to a checkpoint, so the row of a charge that can be read does
// not depend on how the ledger is cut into pages. Several streams that are longer than maxBytes
// together are errLong. A charge that cannot be read is set aside: it depends on no other, and no
// other on it. A charge whose first request is void has no merchant, so it is in no list.
func foldCharges(ctx context.Context, db *postgres.DB, streams []string, until checkpoint) ([]listedCharge, []setAside, error) {
	stored, err := collectStreams(db.Query(ctx, selectUntil, streams, until.Txid, until.Position))
	if errors.Is(err, errLong) && len(slices.Compact(slices.Sorted(slices.Values(streams)))) == 1 {
		return nil, []setAside{newSetAside(streams[0], err)}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the streams of a page: %w", err)
	}
	charges, aside := make([]listedCharge, 0, len(stored)), []setAside(nil)
	for _, id := range slices.Sorted(maps.Keys(stored)) {
		s, err := decode(id, stored[id])
		if err != nil {
			aside = append(aside, newSetAside(id, err))
			continue
		}
		if s.Charge.MerchantID == "" {
			continue
		}
		v := s.View()
		charges = append(charges, listedCharge{
			Generation: until.Generation, ChargeID: id, MerchantID: s.Charge.MerchantID, OrderID: v.OrderID,
			Status: v.Status, CreatedAt: v.CreatedAt, Version: s.Charge.Version, View: v,
		})
	}
	return charges, aside, nil
}

func newSetAside(id string, err error) setAside {
	return setAside{id, strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\x00", ""), "")}
}

const insertAside = `
insert into charges_set_aside (generation, charge_id, reason)
select $1, charge_id, reason
  from json_to_recordset($2) as a (charge_id text, reason text)
    on conflict (generation, charge_id) do nothing`

const upsertCharges = `
insert into charge_list
select *
  from json_populate_recordset(null::charge_list, $1)
    on conflict (generation, charge_id) do update
   set status  = excluded.status,
       version = excluded.version,
       view    = excluded.view`

// upsertBalances adds the postings of events. The offset 0 makes the subquery an index probe
// for each event.
const upsertBalances = `
insert into account_balances as a
select $1::bigint,
       p.merchant_id,
       leg.account,
       sum(leg.debits),
       sum(leg.credits)
  from unnest($2::text[], $3::int[]) as e(stream_id, version)
 cross join lateral (
       select merchant_id, debit, credit, amount
         from ledger_postings
        where stream_id = e.stream_id
          and version = e.version
       offset 0) p
 cross join lateral (values (p.debit, p.amount, 0), (p.credit, 0, p.amount)) as leg(account, debits, credits)
 group by p.merchant_id, leg.account
    on conflict (generation, merchant_id, account) do update
   set debits  = a.debits + excluded.debits,
       credits = a.credits + excluded.credits`

// moveCheckpoint is the first statement of a fold: of two commits that have read the same
// events, the second waits here for the first, and is refused before it has written a row.
const moveCheckpoint = `
update projections
   set txid     = $2,
       position = $3,
       highest  = $4,
       batch    = batch + 1,
       after    = $5
 where generation = $1`

// queue queues a page that follows a checkpoint. Its rows are right only in the commit that
// moves the checkpoint: the balances grow by what the page adds.
func (p page) queue(b *pgx.Batch, at checkpoint) {
	b.Queue(moveCheckpoint, at.Generation, p.until.Txid, p.until.Position, p.until.Highest, at.Batch)
	b.Queue(upsertCharges, p.charges)
	b.Queue(upsertBalances, at.Generation, p.streams, p.versions)
	if len(p.aside) > 0 {
		b.Queue(insertAside, at.Generation, p.aside)
	}
}

// fold folds the events that follow a checkpoint, up to and including last, into its
// generation: one page, in one commit. The page is empty where there is nothing to fold, and
// where there is an error. The commit is refused (isFolded) if the checkpoint has moved.
//
// A page with a row that the database refuses is folded in smaller parts, until its charge is
// alone: that one is set aside.
func fold(ctx context.Context, db *postgres.DB, at, last checkpoint) (page, error) {
	for limit := pageEvents; ; limit = max(1, limit/4) {
		p, err := readPage(ctx, db, at, last, limit)
		if err != nil {
			return page{}, err
		}
		if len(p.streams) == 0 {
			return p, nil
		}
		err = p.commit(ctx, db, at)
		if refusesRow(err) {
			if len(p.streams) > 1 {
				continue
			}
			p.charges, p.aside = p.charges[:0], append(p.aside, newSetAside(p.streams[0], err))
			err = p.commit(ctx, db, at)
		}
		if err != nil {
			return page{}, fmt.Errorf("fold %d events: %w", len(p.streams), err)
		}
		p.until.Batch++
		return p, nil
	}
}

func (p page) commit(ctx context.Context, db *postgres.DB, at checkpoint) error {
	b := &pgx.Batch{}
	p.queue(b, at)
	return db.Commit(ctx, b)
}

// refusesRow reports whether the database refused what a row of the list holds: a value
// that its type, a constraint or an index cannot have.
func refusesRow(err error) bool {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(refusal.Code, "22") || strings.HasPrefix(refusal.Code, "54") ||
		strings.HasPrefix(refusal.Code, "23") && refusal.TableName == "charge_list")
}

// isFolded reports whether a commit was refused because another one has folded the same
// events, or has replaced this generation.
func isFolded(err error) bool { return groupcommit.Constraint(err) == "projections_folded_once" }

// Project folds the next events of the ledger, at most 2,500, into the live projections, and
// returns their number. It leaves out the events that an open transaction may still precede.
//
// Several may project at once: of those that read the same events one commits, and the
// others get an error and have written nothing.
//
// If we die here: rows and checkpoint are one commit; the next call reads the same events.
// Test: TestProject/a_batch_that_is_refused_leaves_nothing.
func Project(ctx context.Context, db *postgres.DB) (events int, err error) {
	at, err := readLive(ctx, db)
	if err != nil || !at.Waiting {
		return 0, err
	}
	p, err := fold(ctx, db, at.checkpoint, end())
	return len(p.streams), err
}

const (
	selectAside = `
select charge_id
  from charges_set_aside
 where generation = $1
 order by charge_id`

	deleteAside = `
delete from charges_set_aside
 where generation = $1
   and charge_id = $2`
)

// RetrySetAside lists in charge_list the charges that were set aside and can be read now, each
// in its own commit.
//
// If we die here: row and mark are one commit; the next call reads what is left.
// Test: TestRetrySetAside_cutInItsCommit.
func RetrySetAside(ctx context.Context, db *postgres.DB) error {
	at, err := readLive(ctx, db)
	if err != nil {
		return err
	}
	ids, err := collectValues[string](db.Query(ctx, selectAside, at.Generation))
	if err != nil {
		return fmt.Errorf("read what was set aside: %w", err)
	}
	for _, id := range ids {
		if at, err = readLive(ctx, db); err != nil {
			return err
		}
		charges, aside, err := foldCharges(ctx, db, []string{id}, at.checkpoint)
		if err != nil {
			return err
		}
		if len(aside) > 0 {
			continue
		}
		b := &pgx.Batch{}
		page{until: at.checkpoint, charges: charges}.queue(b, at.checkpoint)
		b.Queue(deleteAside, at.Generation, id)
		if err := db.Commit(ctx, b); err != nil && !isFolded(err) && !refusesRow(err) {
			return fmt.Errorf("list %s: %w", id, err)
		}
	}
	return nil
}
