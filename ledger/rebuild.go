package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// ErrRebuilding is returned by Rebuild while another one runs.
var ErrRebuilding = errors.New("another rebuild is at work")

// ErrRestored is returned by Rebuild while the order of the ledger is that of another
// server: the tables were dumped and restored, and not repaired.
var ErrRestored = errors.New("the tables were restored from a dump: run payonce outbox repair first")

// Rebuilt is what a rebuild found.
type Rebuilt struct {
	// Events is how many events were folded. AsOfPosition is the highest of their positions.
	Events       int64 `json:"events"`
	AsOfPosition int64 `json:"as_of_position"`
	// Charges and Balances are how many rows of each projection were compared, at one
	// checkpoint, old against new.
	Charges  int64 `json:"charges"`
	Balances int64 `json:"balances"`
	// Different is how many rows were not the same, missing or too many, and Examples
	// describes some of them; never nil.
	Different int64    `json:"different"`
	Examples  []string `json:"examples"`
	// Live says that the new projections have replaced the old ones.
	Live bool `json:"live"`
	// InDoubt says that they may have: the outcome of the commit that does it is unknown,
	// and the database did not answer since.
	InDoubt bool `json:"-"`
}

const maxExamples = 5

const rebuildLock = 0x7061796f6e6365 // an advisory lock

// tryLock takes the lock until the transaction ends. The session idles meanwhile, so no
// time-out may end it.
const tryLock = `
select pg_try_advisory_xact_lock($1)
  from set_config('idle_in_transaction_session_timeout', '0', true)`

// Rebuild makes the projections anew from the ledger, in a new generation beside the live
// one. It compares the two at one checkpoint, byte for byte, and replaces the old ones,
// whether they differ or not: the ledger is the truth. Traffic, reads and projectors go on
// meanwhile. progress, where not nil, is called with the number of events folded so far.
//
// db has the role of the tables' owner: other roles may not begin a generation, nor delete
// one. Rebuild takes up to three connections. Their sessions must not end transactions that
// are idle, nor long statements.
//
// If we die here: until the commit of replace the live projections are the old ones, and
// from then on the new ones; the next rebuild deletes the rows that no reader needs.
// Tests: TestRebuild/a_rebuild_that_dies_leaves_the_live_ones_alone,
// TestRebuildKilled in cmd/payonce.
func Rebuild(ctx context.Context, db *postgres.DB, progress func(events int64)) (Rebuilt, error) {
	r := rebuild{db: db, progress: progress, found: Rebuilt{Examples: []string{}}}
	// The lock keeps a second rebuild from undoing the work of the first. If the session that
	// holds it is lost and another rebuild begins, the next commit of the first is refused.
	lock, err := db.Pool().Begin(ctx)
	if err != nil {
		return r.found, fmt.Errorf("take the lock of rebuilds: %w", err)
	}
	defer rollback(ctx, lock)
	var taken bool
	if err := lock.QueryRow(ctx, tryLock, rebuildLock).Scan(&taken); err != nil {
		return r.found, fmt.Errorf("take the lock of rebuilds: %w", err)
	}
	if !taken {
		return r.found, ErrRebuilding
	}
	for _, step := range []func(context.Context) error{r.check, r.clear, r.begin, r.catchUp, r.compare, r.replace, r.clear} {
		if err := step(ctx); err != nil {
			return r.found, err
		}
	}
	return r.found, nil
}

// rollback ends a transaction that has written nothing.
func rollback(ctx context.Context, tx pgx.Tx) { _ = tx.Rollback(context.WithoutCancel(ctx)) }

type rebuild struct {
	db       *postgres.DB
	progress func(events int64)
	at       checkpoint // of the new generation
	found    Rebuilt
}

// check refuses a ledger whose events came with a dump and may not be readable yet: without
// them every row would differ, and the new projections could not reach the live ones.
func (r *rebuild) check(ctx context.Context) error {
	at, err := readLive(ctx, r.db)
	if err == nil && at.Restored {
		err = ErrRestored
	}
	return err
}

// The batch moves too, so that a rebuild that still writes to the generation is refused.
const retireBuilding = `
update projections
   set state = 'retired',
       batch = batch + 1,
       after = batch
 where state = 'building'`

// The limit makes each subquery an index probe for one generation. Joined without it, the
// planner would pass over all rows of the live one.
const deleteRetired = `
with charges as (
  delete from charge_list
   where ctid = any (array(
         select c.row
           from projections p
          cross join lateral (
                select ctid as row
                  from charge_list
                 where generation = p.generation
                 limit $1) c
          where p.state = 'retired'
          limit $1))
  returning 1
), balances as (
  delete from account_balances
   where ctid = any (array(
         select a.row
           from projections p
          cross join lateral (
                select ctid as row
                  from account_balances
                 where generation = p.generation
                 limit $1) a
          where p.state = 'retired'
          limit $1))
  returning 1
)
select (select count(*) from charges) + (select count(*) from balances)`

const deleteLimit = 1000 // rows of each table in one commit

// clear deletes what no reader needs: a generation that was replaced, and one whose rebuild
// died.
func (r *rebuild) clear(ctx context.Context) error {
	b := &pgx.Batch{}
	b.Queue(retireBuilding)
	if err := r.db.Commit(ctx, b); err != nil {
		return fmt.Errorf("retire what an earlier rebuild began: %w", err)
	}
	for {
		deleted, err := collectValues[int](r.db.Query(ctx, deleteRetired, deleteLimit))
		if err != nil {
			return fmt.Errorf("delete retired rows: %w", err)
		}
		if deleted[0] == 0 {
			return nil
		}
	}
}

const insertBuilding = `
insert into projections (state)
values ('building')
returning generation`

func (r *rebuild) begin(ctx context.Context) error {
	if err := r.db.QueryRow(ctx, insertBuilding).Scan(&r.at.Generation); err != nil {
		return fmt.Errorf("begin a generation: %w", err)
	}
	return nil
}

// catchUp folds as far as the live projections have, which go on meanwhile, until what is
// missing fits into one commit.
func (r *rebuild) catchUp(ctx context.Context) error {
	for pages := 2; pages > 1; {
		at, err := readLive(ctx, r.db)
		if err == nil {
			pages, err = r.foldTo(ctx, at.checkpoint)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// foldTo folds every event up to a checkpoint, and returns the number of commits.
func (r *rebuild) foldTo(ctx context.Context, last checkpoint) (pages int, err error) {
	for more := true; more; pages++ {
		p, err := fold(ctx, r.db, r.at, last)
		if err != nil || len(p.streams) == 0 {
			return pages, err
		}
		r.moveTo(p)
		more = p.full
	}
	return pages, nil
}

// moveTo notes that a page is committed.
func (r *rebuild) moveTo(p page) {
	r.at = p.until
	r.found.Events += int64(len(p.streams))
	r.found.AsOfPosition = r.at.Highest
	if r.progress != nil {
		r.progress(r.found.Events)
	}
}

// compare compares all rows of both generations at one checkpoint: that of the live one in
// a snapshot. The snapshot stays open while the new generation is folded up to the same
// checkpoint, and is read then. It holds no lock, and has no transaction id that would hold
// back readers of the log.
func (r *rebuild) compare(ctx context.Context) error {
	before, err := r.db.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer rollback(ctx, before)
	at, err := oneLive(before.Query(ctx, selectLive))
	if err != nil {
		return err
	}
	if _, err := r.foldTo(ctx, at.checkpoint); err != nil {
		return err
	}
	after, err := r.db.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer rollback(ctx, after)
	if r.found.Charges, err = r.compareRows(ctx, selectChargeDigests, before, at.Generation, after); err != nil {
		return err
	}
	r.found.Balances, err = r.compareRows(ctx, selectBalanceDigests, before, at.Generation, after)
	return err
}

// The order is that of bytes, in which Go compares too.
const selectChargeDigests = `
select 'charge ' || charge_id,
       sha256(convert_to(row(merchant_id, order_id, status, created_at, version, view::text)::text, 'UTF8')),
       format('%s, %s events', status, version)
  from charge_list
 where generation = $1
 order by charge_id collate "C"`

const selectBalanceDigests = `
select 'account ' || account || ' of ' || merchant_id,
       sha256(convert_to(row(debits, credits)::text, 'UTF8')),
       format('%s − %s', debits, credits)
  from account_balances
 where generation = $1
 order by ('account ' || account || ' of ' || merchant_id) collate "C"`

// compareRows reads the rows of both generations side by side, notes what differs, and
// returns the number of rows that are in either.
func (r *rebuild) compareRows(ctx context.Context, sql string, before pgx.Tx, live int64, after pgx.Tx) (rows int64, err error) {
	was, is := digestsOf(before.Query(ctx, sql, live)), digestsOf(after.Query(ctx, sql, r.at.Generation))
	defer was.Close()
	defer is.Close()
	for ; was.more || is.more; rows++ {
		order := strings.Compare(was.key, is.key)
		if !is.more {
			order = -1
		} else if !was.more {
			order = 1
		}
		switch {
		case order < 0:
			r.differs("%s: live says %s; the ledger knows nothing of it", was.key, was.says)
		case order > 0:
			r.differs("%s: not among the live ones; the ledger says %s", is.key, is.says)
		case string(was.digest) != string(is.digest):
			r.differs("%s: live says %s; the ledger says %s", was.key, was.says, is.says)
		}
		if order <= 0 {
			was.next()
		}
		if order >= 0 {
			is.next()
		}
	}
	if err := errors.Join(was.Err(), is.Err()); err != nil {
		return rows, fmt.Errorf("compare projections: %w", err)
	}
	return rows, nil
}

// digests are the rows of one generation, in the order of their keys.
type digests struct {
	pgx.Rows

	more   bool
	key    string
	digest []byte
	says   string
}

func digestsOf(rows pgx.Rows, _ error) *digests { // the rows have the error too
	d := &digests{Rows: rows}
	d.next()
	return d
}

// next reads a row. Without one, more is false, and Err has the error.
func (d *digests) next() { d.more = d.Next() && d.Scan(&d.key, &d.digest, &d.says) == nil }

func (r *rebuild) differs(format string, a ...any) {
	r.found.Different++
	if len(r.found.Examples) < maxExamples {
		r.found.Examples = append(r.found.Examples, fmt.Sprintf(format, a...))
	}
}

// The commit fences the live generation first: what its projector has read before, it cannot
// commit.
const retireLive = `
update projections
   set state = 'retired',
       batch = batch + 1,
       after = batch
 where generation = $1
   and state = 'live'`

const takeOver = `
update projections as p
   set state              = 'live',
       took_over_txid     = live.txid,
       took_over_position = live.position
  from projections live
 where p.generation = $1
   and live.generation = $2`

// replace folds the rest and replaces the live projections, in one commit. The commit is
// refused if they are ahead by then, since a reader must not lose what it has seen; then
// there is a little more to fold, and replace tries again.
func (r *rebuild) replace(ctx context.Context) error {
	for fenced := false; ; {
		at, err := readLive(ctx, r.db)
		if err != nil {
			return err
		}
		if at.Generation == r.at.Generation {
			r.found.Live, r.found.InDoubt = true, false
			return nil
		}
		p, err := readPage(ctx, r.db, r.at, end())
		if err != nil {
			return err
		}
		if p.full {
			if _, err := r.foldTo(ctx, end()); err != nil {
				return err
			}
			continue
		}
		b := &pgx.Batch{}
		b.Queue(retireLive, at.Generation)
		p.queue(b, r.at)
		b.Queue(takeOver, r.at.Generation, at.Generation)
		err = r.db.Commit(ctx, b)
		switch {
		case err == nil:
			r.moveTo(p)
			r.found.Live, r.found.InDoubt = true, false
			return nil
		case postgres.Constraint(err) == "projections_never_behind":
		case postgres.OutcomeOf(err) == postgres.Unknown:
			// If it committed, the next read shows it, or the next commit waits for it and is
			// refused.
			r.found.InDoubt = true
		case isFolded(err) && !fenced:
			fenced = true
		default:
			return fmt.Errorf("replace the live projections: %w", err)
		}
	}
}
