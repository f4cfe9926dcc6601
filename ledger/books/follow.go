package books

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// nextPage reads the next events of the follower $1, $2 at most, moves the follower behind them, and
// holds its row until the transaction ends. It stays below the oldest open transaction, so no event will
// appear between those that it reads. It reads nothing where nothing is new, while another session holds
// the row, and before the repair of a restored dump.
//
// The follower's row that the statement locks may be newer than the snapshot in which it reads the
// events. Then it reads too few events, never one twice.
const nextPage = `
-- books.nextPage
with follower as materialized (
  select txid,
         position
    from followers f
   where name = $1
     and (select is_original from restore_guard)
     and exists (
           select
             from ledger_events e
            where (e.txid, e.position) > (f.txid, f.position)
              and e.txid < ledger_order(pg_snapshot_xmin(pg_current_snapshot())))
     for update skip locked
), page as materialized (
  select e.txid,
         e.position,
         e.stream_id,
         e.version
    from ledger_events e
   where (e.txid, e.position) > ((select txid from follower), (select position from follower))
     and e.txid < ledger_order(pg_snapshot_xmin(pg_current_snapshot()))
   order by e.txid, e.position
   limit $2
), moved as (
  update followers f
     set txid     = last.txid,
         position = last.position,
         highest  = greatest(f.highest, (select max(position) from page))
    from (select txid, position from page order by txid desc, position desc limit 1) last
   where f.name = $1
)`

// Followed is an event as a follower reads it.
type Followed struct {
	Txid     uint64
	Position int64
	StreamID string
	Version  int
}

const selectPage = nextPage + `
select txid,
       position,
       stream_id,
       version
  from page
 order by txid, position`

// Follow reads the next events of a follower, limit at most, lets work store what it makes of them in the
// same transaction, and returns their number. Events come in the order of their transactions, each once,
// and below the oldest open transaction. Where nothing is new, or while another session follows under this
// name, work is not called and the number is 0. An error of work rolls everything back, and the next call
// reads the same events. While the transaction is open, the other readers of the ledger wait below it.
//
// If we die here: what work stored and the follower's place are one commit.
// Test: TestFollow_storesEachEventOnce.
func Follow(
	ctx context.Context, db *postgres.DB, name string, limit int, work func(ctx context.Context, tx pgx.Tx, events []Followed) error,
) (n int, err error) {
	err = pgx.BeginFunc(ctx, db.Pool(), func(tx pgx.Tx) error {
		events, err := collect[Followed](tx.Query(ctx, selectPage, name, limit))
		if n = len(events); err != nil || n == 0 {
			return err
		}
		return work(ctx, tx, events)
	})
	if err != nil {
		return 0, fmt.Errorf("follow the ledger as %s: %w", name, err)
	}
	return n, nil
}
