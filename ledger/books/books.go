// Package books is what merchants and operators read of the ledger: the list of charges, the balances
// and the feed of webhooks. No decision on a charge needs it.
//
// # Usage
//
//	page, err := books.ListCharges(ctx, db.Tenant(merchant), books.ListQuery{MerchantID: merchant, Limit: 100})
//	balances, err := books.ReadBalances(ctx, db.Tenant(merchant), merchant)
//	n, err := books.Follow(ctx, db, "mine", 100, work) // "mine" has a row in followers
//
// # Guarantees
//
//   - The list of charges and the balances show everything that is committed. A charge that
//     cannot be read is left out of the list and holds up no other.
//   - A follower reads all events, each once, in the order of the transactions that wrote them. It stays below
//     the oldest open transaction, so an event that commits late is not skipped. What it stores and its
//     place are one commit.
//   - The feed skips nothing, in the same order.
//
// # Limits
//
// An open transaction anywhere in the server delays followers and the feed, and no other read.
//
// Tables: followers, account_balances, both in the schema of package ledger.
package books

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// selectVersions counts, since a stream has no gap.
const selectVersions = `
-- books.selectVersions
select stream_id,
       merchant_id,
       count(*)
  from ledger_events
 where stream_id = any($1)
 group by stream_id, merchant_id`

// NewVersions makes a reader of the versions of streams, 0 for one that is not the merchant's.
// Streams that are asked for at the same moment share a round trip, one at a time, and those of a
// merchant a statement.
func NewVersions(db interface {
	Read(ctx context.Context, b *pgx.Batch) error
},
) *postgres.Reads[ledger.Owner, int] {
	return postgres.NewReads(1, func(ctx context.Context, streams []ledger.Owner) ([]int, error) {
		ids, found := map[string][]string{}, map[ledger.Owner]int{}
		for _, s := range streams {
			ids[s.MerchantID] = append(ids[s.MerchantID], s.StreamID)
		}
		b, versions := &pgx.Batch{}, make([]int, len(streams))
		for merchant := range ids {
			postgres.QueueTenant(b, merchant)
			b.Queue(selectVersions, ids[merchant]).Query(func(rows pgx.Rows) error {
				var s ledger.Owner
				var version int
				_, err := pgx.ForEachRow(rows, []any{&s.StreamID, &s.MerchantID, &version}, func() error { found[s] = version; return nil })
				return err
			})
		}
		err := db.Read(ctx, b)
		for i, s := range streams {
			versions[i] = found[s]
		}
		return versions, err
	})
}

// collect reads the rows of a query into structs, by the names of the columns. The rows
// have the error of the query too.
func collect[T any](rows pgx.Rows, _ error) ([]T, error) {
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

// collectValues does the same for rows of one column.
func collectValues[T any](rows pgx.Rows, _ error) ([]T, error) {
	return pgx.CollectRows(rows, pgx.RowTo[T])
}
