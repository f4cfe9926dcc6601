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

import "github.com/jackc/pgx/v5"

// collect reads the rows of a query into structs, by the names of the columns. The rows
// have the error of the query too.
func collect[T any](rows pgx.Rows, _ error) ([]T, error) {
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

// collectValues does the same for rows of one column.
func collectValues[T any](rows pgx.Rows, _ error) ([]T, error) {
	return pgx.CollectRows(rows, pgx.RowTo[T])
}
