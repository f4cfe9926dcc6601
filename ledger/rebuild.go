package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
)

// ErrRebuilding is returned by Rebuild while another one is at work.
var ErrRebuilding = errors.New("another rebuild is at work")

// ErrRestored is returned by Rebuild where the order of the ledger is another
// server's: the tables were dumped and restored, and not repaired.
var ErrRestored = errors.New("the tables were restored from a dump: run payonce outbox repair first")

// Rebuilt is what a rebuild found.
type Rebuilt struct {
	// Events were folded anew. AsOfPosition is the highest of their positions.
	Events       int64 `json:"events"`
	AsOfPosition int64 `json:"as_of_position"`
	// Charges and Balances are the rows of each projection that were compared, at
	// one checkpoint, old against new.
	Charges  int64 `json:"charges"`
	Balances int64 `json:"balances"`
	// Different are the rows that were not the same, missing or too many, and
	// Examples some of them; never nil.
	Different int64    `json:"different"`
	Examples  []string `json:"examples"`
	// Live tells that the new projections have taken the place of the old ones.
	Live bool `json:"live"`
	// InDoubt tells that they may have: the answer to the commit that does it was
	// lost, and nothing more was heard of the database.
	InDoubt bool `json:"-"`
}

// rebuildLock is the advisory lock of the one who rebuilds.
const (
	rebuildLock   = 0x7061796f6e6365
	unlockTimeout = 5 * time.Second
)

// Rebuild makes the projections anew from the ledger, beside the live ones,
// compares the two at one checkpoint, byte for byte, and puts the new ones in the
// place of the old, whether they differ or not: the ledger is the truth. Traffic,
// reads and the projectors go on meanwhile. folded is told now and then how many
// events were folded; it may be nil.
//
// db has to be that of the tables' owner: other roles may not begin a generation,
// nor remove one. It takes up to three connections. Sessions must not end
// transactions that are idle, nor long statements.
//
// If we die here: until the commit of replace the live projections are what they
// were, and from then on the new ones are. The rows that nobody reads are removed
// by the next rebuild.
// Tests: TestRebuild/a_rebuild_that_dies_leaves_the_live_ones_alone,
// TestRebuildKilled in cmd/payonce.
func Rebuild(ctx context.Context, db *postgres.DB, folded func(events int64)) (Rebuilt, error) {
	r := rebuild{db: db, folded: folded, found: Rebuilt{Examples: []string{}}}
	unlock, err := lock(ctx, db)
	if err != nil {
		return r.found, err
	}
	defer unlock()
	for _, step := range []func(context.Context) error{r.ordered, r.clear, r.begin, r.catchUp, r.compare, r.replace, r.clear} {
		if err := step(ctx); err != nil {
			return r.found, err
		}
	}
	return r.found, nil
}

// lock keeps a second rebuild from undoing the work of the first. If the session
// that holds it is lost and a second one begins, what the first commits from then
// on is refused.
func lock(ctx context.Context, db *postgres.DB) (unlock func(), err error) {
	conn, err := db.Pool().Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("take the lock of rebuilds: %w", err)
	}
	unlock = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
		defer cancel()
		// The lock ends with its session, but only when the server gets to it.
		_, _ = conn.Exec(ctx, `select pg_advisory_unlock_all()`)
		_ = conn.Conn().Close(ctx)
		conn.Release()
	}
	var taken bool
	if err := conn.QueryRow(ctx, `select pg_try_advisory_lock($1)`, rebuildLock).Scan(&taken); err != nil {
		unlock()
		return nil, fmt.Errorf("take the lock of rebuilds: %w", err)
	}
	if !taken {
		unlock()
		return nil, ErrRebuilding
	}
	return unlock, nil
}

type rebuild struct {
	db     *postgres.DB
	folded func(events int64)
	at     checkpoint // of the generation that is built
	found  Rebuilt
}

const selectOrdered = `
select (select own from numbering)
   and txid < pg_snapshot_xmax(pg_current_snapshot())
  from projections
 where state = 'live'`

// ordered refuses where events that came with a dump may not be read yet: without
// them everything would differ, and nothing could come as far as the live ones.
func (r *rebuild) ordered(ctx context.Context) error {
	var own bool
	if err := r.db.QueryRow(ctx, selectOrdered).Scan(&own); err != nil {
		return fmt.Errorf("ask whose order the ledger has: %w", err)
	}
	if !own {
		return ErrRestored
	}
	return nil
}

// The batch is moved on, so that whoever still writes to it is refused.
const retireBuilding = `
update projections
   set state = 'retired',
       batch = batch + 1,
       after = batch
 where state = 'building'`

// The limit keeps the subquery a look for rows of one generation. As a join it was
// planned to pass over all rows of the live one.
const deleteListed = `
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
returning 1`

const deleteBalances = `
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
returning 1`

// deleteAtOnce bounds the rows of one transaction.
const deleteAtOnce = 1000

// clear removes what nobody reads: a generation that was replaced, and one whose
// rebuild died.
func (r *rebuild) clear(ctx context.Context) error {
	b := &pgx.Batch{}
	b.Queue(retireBuilding)
	if err := r.db.Commit(ctx, b); err != nil {
		return fmt.Errorf("give up what an earlier rebuild began: %w", err)
	}
	for _, sql := range []string{deleteListed, deleteBalances} {
		for n := deleteAtOnce; n == deleteAtOnce; {
			rows, err := r.db.QueryWith(ctx, groupcommit.IndexScans(), sql, deleteAtOnce)
			if err != nil {
				return fmt.Errorf("remove rows that nobody reads: %w", err)
			}
			deleted, err := pgx.CollectRows(rows, pgx.RowTo[int])
			if err != nil {
				return fmt.Errorf("remove rows that nobody reads: %w", err)
			}
			n = len(deleted)
		}
	}
	return nil
}

const insertBuilding = `
insert into projections (state)
values ('building')`

const selectBuilding = `
select generation
  from projections
 where state = 'building'`

func (r *rebuild) begin(ctx context.Context) error {
	b := &pgx.Batch{}
	b.Queue(insertBuilding)
	if err := r.db.Commit(ctx, b); err != nil {
		return fmt.Errorf("begin a generation: %w", err)
	}
	if err := r.db.QueryRow(ctx, selectBuilding).Scan(&r.at.Generation); err != nil {
		return fmt.Errorf("begin a generation: %w", err)
	}
	return nil
}

// catchUp folds as far as the live projections have, which go on meanwhile, until
// what is missing fits into one commit.
func (r *rebuild) catchUp(ctx context.Context) error {
	for {
		live, _, err := look(ctx, r.db)
		if err != nil {
			return err
		}
		pages, err := r.foldTo(ctx, live)
		if err != nil || pages <= 1 {
			return err
		}
	}
}

// foldTo folds everything that is there up to a checkpoint, and says in how many
// commits.
func (r *rebuild) foldTo(ctx context.Context, last checkpoint) (pages int, err error) {
	for more := true; more; {
		p, err := readPage(ctx, r.db, r.at, last)
		if err != nil || p.events == 0 {
			return pages, err
		}
		more = p.full
		b := &pgx.Batch{}
		move(b, r.at, p.until)
		p.write(b)
		if err := r.db.Commit(ctx, b); err != nil {
			return pages, fmt.Errorf("fold %d events anew: %w", p.events, err)
		}
		r.moved(p)
		pages++
	}
	return pages, nil
}

// moved notes a commit that has moved the checkpoint.
func (r *rebuild) moved(p page) {
	r.at = p.until
	r.at.Batch++
	r.found.Events += int64(p.events)
	r.found.AsOfPosition = r.at.Highest
	if r.folded != nil {
		r.folded(r.found.Events)
	}
}

// The live generation's projector is fenced off first: what it reads from now on
// it cannot commit there.
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
       txid               = $3,
       position           = $4,
       highest            = $5,
       batch              = p.batch + 1,
       after              = $6,
       took_over_txid     = live.txid,
       took_over_position = live.position
  from projections live
 where p.generation = $1
   and live.generation = $2`

// replace folds the rest and takes the place of the live projections in one
// commit. It is refused where they have come further meanwhile: a reader must not
// lose what it has seen. Then there is a little more to fold, and it is tried again.
func (r *rebuild) replace(ctx context.Context) error {
	for settled := false; ; {
		live, _, err := look(ctx, r.db)
		if err != nil {
			return err
		}
		if live.Generation == r.at.Generation {
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
		b.Queue(retireLive, live.Generation)
		b.Queue(takeOver, r.at.Generation, live.Generation, p.until.Txid, p.until.Position, p.until.Highest, r.at.Batch)
		p.write(b)
		err = r.db.Commit(ctx, b)
		switch {
		case err == nil:
			r.moved(p)
			r.found.Live, r.found.InDoubt = true, false
			return nil
		case postgres.Constraint(err) == "projections_never_behind":
		case errors.Is(err, postgres.ErrUnknown):
			// If it was a commit, the next look shows it, or the next commit is refused
			// after it has waited for it.
			r.found.InDoubt = true
		case isOutrun(err) && !settled:
			settled = true
		default:
			return fmt.Errorf("take the place of the live projections: %w", err)
		}
	}
}
