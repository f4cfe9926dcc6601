package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
)

// ErrRebuilding is returned by Rebuild while another one runs.
var ErrRebuilding = errors.New("another rebuild is at work")

// ErrRestored is returned by Rebuild while the order of the ledger is that of another
// server: the tables were dumped and restored, and not repaired.
var ErrRestored = errors.New("the tables were restored from a dump: run payonce outbox repair first")

// RebuildResult is what a rebuild found.
type RebuildResult struct {
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
// ErrRebuilding while another rebuild runs, ErrRestored before the repair of a restored dump.
//
// db has the role of the tables' owner: other roles may not begin a generation, nor delete
// one. Rebuild takes two connections. Their sessions must not end transactions that are
// idle, nor long statements.
//
// If we die here: until the commit of replace the live projections are the old ones, and
// from then on the new ones; the next rebuild deletes the rows that no reader needs.
// Test: TestRebuild/a_rebuild_that_dies_leaves_the_live_ones_alone.
func Rebuild(ctx context.Context, db *postgres.DB, progress func(events int64)) (RebuildResult, error) {
	r := rebuild{db: db, progress: progress, found: RebuildResult{Examples: []string{}}}
	// The lock keeps a second rebuild from undoing the work of the first. If the session that
	// holds it is lost and another rebuild begins, the next commit of the first is refused.
	lock, err := db.Pool().Begin(ctx)
	if err != nil {
		return r.found, fmt.Errorf("take the lock of rebuilds: %w", err)
	}
	defer func() { _ = lock.Rollback(context.WithoutCancel(ctx)) }()
	var taken bool
	if err := lock.QueryRow(ctx, tryLock, rebuildLock).Scan(&taken); err != nil {
		return r.found, fmt.Errorf("take the lock of rebuilds: %w", err)
	}
	if !taken {
		return r.found, ErrRebuilding
	}
	for _, step := range []func(context.Context) error{r.clear, r.begin, r.compare, r.replace, r.clear} {
		if err := step(ctx); err != nil {
			return r.found, err
		}
	}
	return r.found, nil
}

type rebuild struct {
	db       *postgres.DB
	progress func(events int64)
	at       checkpoint // of the new generation
	found    RebuildResult
}

// retire ends the generation that is in a state. Its batch moves too, so that what still
// writes to it is refused: a rebuild, or the projector of the live one.
const retire = `
update projections
   set state = 'retired',
       batch = batch + 1,
       after = batch
 where state = $1
   and generation = coalesce($2, generation)`

// deleteRetired deletes rows of generations that have ended. The limit makes each subquery an
// index probe for one generation. Joined without it, the planner would pass over all rows of
// the live one.
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

const deleteRetiredAside = `
delete from charges_set_aside
 where generation in (select generation from projections where state = 'retired')`

const deleteLimit = 1000 // rows of each table in one commit

// clear deletes what no reader needs: a generation that was replaced, and one whose rebuild
// died.
func (r *rebuild) clear(ctx context.Context) error {
	b := &pgx.Batch{}
	b.Queue(retire, "building", nil)
	b.Queue(deleteRetiredAside)
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

// begin begins a generation. It refuses a ledger whose events came with a dump and may not
// be readable yet: the new projections could not reach the live ones.
func (r *rebuild) begin(ctx context.Context) error {
	at, err := readLive(ctx, r.db)
	if err == nil && at.Restored {
		err = ErrRestored
	}
	if err == nil {
		err = r.db.QueryRow(ctx, insertBuilding).Scan(&r.at.Generation)
	}
	if err != nil {
		return fmt.Errorf("begin a generation: %w", err)
	}
	return nil
}

// catchUp folds as far as the live projections have, and returns their checkpoint.
func (r *rebuild) catchUp(ctx context.Context) (checkpoint, error) {
	at, err := readLive(ctx, r.db)
	for more := at.Generation != r.at.Generation; err == nil && more; {
		var p page
		if p, err = fold(ctx, r.db, r.at, at.checkpoint); err == nil && len(p.streams) > 0 {
			r.moveTo(p)
		}
		more = p.full
	}
	return at.checkpoint, err
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

// selectCompared compares all rows of the new generation with those of the live one. Unless
// both are at one checkpoint, it reads none of them and returns no row.
const selectCompared = `
with at as (
  select live.generation as live, new.generation as new
    from projections live
    join projections new on (new.txid, new.position) = (live.txid, live.position)
   where live.state = 'live'
     and new.generation = $1
), compared as (
  select charges, balances, name,
         count(*) < 2 or min(digest) <> max(digest)     as differs,
         max(says) filter (where generation = at.live)  as live_says,
         max(says) filter (where generation = at.new)   as ledger_says
    from at
    join (
         select generation, 1 as charges, 0 as balances, 'charge ' || charge_id as name,
                encode(sha256(convert_to(row(merchant_id, order_id, status, created_at, version, view::text)::text, 'UTF8')), 'hex') as digest,
                format('%s, %s events', status, version) as says
           from charge_list
          union all
         select generation, 0, 1, 'account ' || account || ' of ' || merchant_id,
                row(debits, credits)::text,
                format('%s − %s', debits, credits)
           from account_balances) r
      on generation in (at.live, at.new)
   group by charges, balances, name
)
select coalesce(sum(charges), 0)        as charges,
       coalesce(sum(balances), 0)       as balances,
       count(*) filter (where differs)  as different,
       array(select format(case when live_says is null then '%1$s: not among the live ones; the ledger says %3$s'
                                when ledger_says is null then '%1$s: live says %2$s; the ledger knows nothing of it'
                                else '%1$s: live says %2$s; the ledger says %3$s' end, name, live_says, ledger_says)
               from compared
              where differs
              order by balances, name collate "C"
              limit $2)                 as examples
  from compared
having exists (select from at)`

// compare compares both generations at one checkpoint, in one snapshot. Once the live
// projector is near the end of the ledger it pauses between its pages, so the new generation
// soon reaches its checkpoint.
func (r *rebuild) compare(ctx context.Context) error {
	for compared := false; !compared; {
		if _, err := r.catchUp(ctx); err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(postgres.ReadWholeTables)
		b.Queue(selectCompared, r.at.Generation, maxExamples).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&r.found.Charges, &r.found.Balances, &r.found.Different, &r.found.Examples},
				func() error { compared = true; return nil })
			return err
		})
		if err := r.db.Read(ctx, b); err != nil {
			return fmt.Errorf("compare projections: %w", err)
		}
	}
	return nil
}

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
	for retried := false; ; {
		at, err := r.catchUp(ctx)
		if err != nil {
			return err
		}
		if at.Generation == r.at.Generation {
			r.found.Live, r.found.InDoubt = true, false
			return nil
		}
		p, err := readPage(ctx, r.db, r.at, end(), pageEvents)
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue(retire, "live", at.Generation) // what its projector has read before, it cannot commit
		p.queue(b, r.at)
		b.Queue(takeOver, r.at.Generation, at.Generation)
		err = r.db.Commit(ctx, b)
		switch {
		case err == nil:
			r.moveTo(p)
			r.found.Live, r.found.InDoubt = true, false
			return nil
		case groupcommit.Constraint(err) == "projections_never_behind":
		case groupcommit.OutcomeOf(err) == groupcommit.Unknown:
			// If it committed, the next read shows it, or the next commit waits for it and is
			// refused.
			r.found.InDoubt = true
		case isFolded(err) && !retried:
			retried = true
		default:
			return fmt.Errorf("replace the live projections: %w", err)
		}
	}
}
