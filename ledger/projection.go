package ledger

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
)

// checkpoint is how far a generation of the projections has folded the ledger:
// everything up to and including (Txid, Position).
type checkpoint struct {
	Generation int64
	Txid       uint64
	Position   int64
	Highest    int64 // position of an event that was folded
	Batch      int64 // grows with every commit that moves the checkpoint
}

// end is behind every event.
func end() checkpoint { return checkpoint{Txid: math.MaxUint64, Position: math.MaxInt64} }

// foldAtOnce bounds the events of one commit. Its transaction has an id while it
// lasts, and holds back the readers of the outbox for as long. It has room for what
// gathers while 5,000 come in a second.
const foldAtOnce = 2500

// foldBytes bounds what is read of their streams, and so the memory and the time that
// a page takes where charges hold much: a page that took too long would do so again.
const foldBytes = 16 << 20

// Where the numbers are another server's, nothing is folded before a repair: what
// was committed below the checkpoint would be left out.
const selectLive = `
select p.generation,
       p.txid,
       p.position,
       p.highest,
       p.batch,
       exists (
         select
           from ledger_events e
          where (e.txid, e.position) > (p.txid, p.position)
            and e.txid < pg_snapshot_xmin(pg_current_snapshot()))
         and (select own from numbering) as waiting
  from projections p
 where p.state = 'live'`

// look is where the live projections stand, and whether events wait to be folded
// in. It reads, and costs the same however long the ledger is.
func look(ctx context.Context, db *postgres.DB) (at checkpoint, waiting bool, err error) {
	rows, err := db.QueryWith(ctx, groupcommit.IndexScans(), selectLive)
	if err != nil {
		return at, false, fmt.Errorf("look at the projections: %w", err)
	}
	type live struct {
		checkpoint
		Waiting bool
	}
	found, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[live])
	if err != nil {
		return at, false, fmt.Errorf("look at the projections: %w", err)
	}
	return found.checkpoint, found.Waiting, nil
}

// The checkpoint is moved first: of two who have read the same events the second
// waits here for the first, and is refused before it has written a row.
const moveCheckpoint = `
update projections
   set txid     = $2,
       position = $3,
       highest  = $4,
       batch    = batch + 1,
       after    = $5
 where generation = $1`

// move queues the step from one checkpoint to the next. The batch is refused as a
// whole (see isOutrun) if anybody has moved it since it was read.
func move(b *pgx.Batch, from, to checkpoint) {
	b.Queue(moveCheckpoint, from.Generation, to.Txid, to.Position, to.Highest, from.Batch)
}

// isOutrun tells whether a commit was refused because somebody else has folded
// the same events, or has put another generation in the place of this one.
func isOutrun(err error) bool { return postgres.Constraint(err) == "projections_folded_once" }

// Project folds the next events of the ledger, at most 2,500, into the
// live projections and says how many there were. It leaves out what a transaction
// under way could still precede, so a moment later there may be more.
//
// Several may project at once: of those that read the same events one commits.
// The others get an error, and everything that they wrote is gone.
//
// If we die here: rows and checkpoint are one commit. Whoever projects next reads
// the same events.
// Test: TestProject/a_batch_that_is_refused_leaves_nothing.
func Project(ctx context.Context, db *postgres.DB) (int, error) {
	at, waiting, err := look(ctx, db)
	if err != nil || !waiting {
		return 0, err
	}
	p, err := project(ctx, db, at)
	return p.events, err
}

// project is what was folded: nothing, with an error.
func project(ctx context.Context, db *postgres.DB, at checkpoint) (page, error) {
	p, err := readPage(ctx, db, at, end())
	if err != nil || p.events == 0 {
		return page{}, err
	}
	b := &pgx.Batch{}
	move(b, at, p.until)
	p.write(b)
	if err := db.Commit(ctx, b); err != nil {
		return page{}, fmt.Errorf("fold %d events: %w", p.events, err)
	}
	return p, nil
}
