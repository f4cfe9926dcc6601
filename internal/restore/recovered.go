package restore

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

const (
	// selectRecovered goes by rows that no standby and no backup of an earlier history has. A
	// client sends a key again for as long as the api keeps it, seven days by default, and
	// the provider keeps its own keys for one.
	selectRecovered = `
select count(*) filter (where history = database_history()) > 0,
       coalesce(max(recovered_at) > clock_timestamp() - interval '8 days', false)
  from recoveries`

	insertRecovery = `
insert into recoveries (history)
values (database_history())
    on conflict (history) do nothing`
)

// NewRecovered returns a function that reports whether the database may have lost charges whose
// clients still send their keys again: within the last eight days a standby was promoted, a
// backup was restored, or Repair ran. Calls at the same moment share a round trip; nothing is
// cached.
//
// If we die here: a history that is not recorded is recovered, and the next call records it.
// Test: TestRecovered.
func NewRecovered(db *postgres.DB) func(context.Context) (bool, error) {
	reads := postgres.NewReads(1, func(ctx context.Context, asked []struct{}) ([]bool, error) {
		var known, recent bool
		err := db.QueryRow(ctx, selectRecovered).Scan(&known, &recent)
		if err == nil && !known {
			b := &pgx.Batch{}
			b.Queue(insertRecovery)
			err = db.Commit(ctx, b)
		}
		if err != nil {
			return nil, fmt.Errorf("read whether the database was recovered: %w", err)
		}
		return slices.Repeat([]bool{recent || !known}, len(asked)), nil
	})
	return func(ctx context.Context) (bool, error) { return reads.Ask(ctx, struct{}{}) }
}
