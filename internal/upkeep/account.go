package upkeep

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// ErrOtherAccount is returned, wrapped, for an account or a mode that is not the database's.
var ErrOtherAccount = errors.New("this database belongs to another account of the provider")

const (
	bindAccount = `
-- upkeep.bindAccount
insert into provider_account (account, live)
values ($1, $2)
    on conflict (only_one) do nothing`

	selectAccount = `-- upkeep.selectAccount
select account, live from provider_account`
)

// Bind binds the database to an account of the provider, in live or test mode, if it is
// bound to none, and returns ErrOtherAccount if it is bound to another. The binding is
// durable when Bind returns nil.
//
// If we die here: the database is bound or not, and the next start decides.
// Test: TestBind.
func Bind(ctx context.Context, db *postgres.DB, account string, live bool) error {
	b := &pgx.Batch{}
	b.Queue(bindAccount, account, live)
	if err := db.Commit(ctx, b); err != nil {
		return fmt.Errorf("bind the database to the provider's account: %w", err)
	}
	return CheckAccount(ctx, db, account, live)
}

// CheckAccount returns ErrOtherAccount if the database is bound to another account or mode.
func CheckAccount(ctx context.Context, q postgres.Querier, account string, live bool) error {
	var bound string
	var boundLive bool
	switch err := q.QueryRow(ctx, selectAccount).Scan(&bound, &boundLive); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("read the account that the database is bound to: %w", err)
	case bound != account || boundLive != live:
		return fmt.Errorf("%w: it is bound to %s in %s mode, and STRIPE_SECRET_KEY is of %s in %s mode, so set a key of the first, or see docs/how-to/provider-outage.md",
			ErrOtherAccount, bound, mode[boundLive], account, mode[live])
	}
	return nil
}

var mode = map[bool]string{true: "live", false: "test"}
