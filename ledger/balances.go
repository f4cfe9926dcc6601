package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Balance is what one account came to. Amounts are minor units.
type Balance struct {
	Account  string `json:"account"` // kind:owner
	Currency string `json:"currency"`
	Debits   int64  `json:"debits"`
	Credits  int64  `json:"credits"`
	Balance  int64  `json:"balance"` // debits − credits
}

// Balances are the accounts that a merchant's charges touched, as of one
// position of the log: everything committed when they were read.
type Balances struct {
	Data         []Balance `json:"data"`
	AsOfPosition int64     `json:"as_of_position"`
}

// One statement, so that both parts see the same snapshot.
const selectBalances = `
with legs as (
  select debit as account, currency, amount as debits, 0::bigint as credits
    from ledger_postings
   where merchant_id = $1
   union all
  select credit, currency, 0, amount
    from ledger_postings
   where merchant_id = $1
), totals as (
  select account,
         currency,
         sum(debits)::bigint  as debits,
         sum(credits)::bigint as credits
    from legs
   group by account, currency
)
select (select coalesce(max(position), 0) from ledger_events) as position,
       coalesce(left(t.account, -4), '') as account,
       coalesce(t.currency, '')          as currency,
       coalesce(t.debits, 0)             as debits,
       coalesce(t.credits, 0)            as credits
  from (values (1)) as always(one)
  left join totals t on true
 order by t.currency, t.account`

// ReadBalances sums a merchant's postings. Per currency the balances add up to
// zero, because every posting is a debit and a credit.
func ReadBalances(ctx context.Context, q postgres.Querier, merchant string) (Balances, error) {
	balances := Balances{Data: []Balance{}}
	rows, err := q.Query(ctx, selectBalances, merchant)
	if err != nil {
		return balances, fmt.Errorf("read the balances of %s: %w", merchant, err)
	}
	var row Balance
	_, err = pgx.ForEachRow(rows,
		[]any{&balances.AsOfPosition, &row.Account, &row.Currency, &row.Debits, &row.Credits},
		func() error {
			if row.Account != "" {
				row.Balance = row.Debits - row.Credits
				balances.Data = append(balances.Data, row)
			}
			return nil
		})
	if err != nil {
		return balances, fmt.Errorf("read the balances of %s: %w", merchant, err)
	}
	return balances, nil
}
