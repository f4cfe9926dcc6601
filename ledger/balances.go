package ledger

import (
	"context"
	"fmt"

	"github.com/payonce/payonce/internal/postgres"
)

// Balance is the sum of the postings of one account. Amounts are minor units.
type Balance struct {
	Account  string `json:"account"` // kind:owner
	Currency string `json:"currency"`
	Debits   int64  `json:"debits"`
	Credits  int64  `json:"credits"`
	Balance  int64  `json:"balance" db:"-"` // debits − credits
}

// Balances are the accounts that a merchant's charges touched, at one position of the ledger.
// A later read is at the same position or a higher one.
type Balances struct {
	Data         []Balance `json:"data"`
	AsOfPosition int64     `json:"as_of_position"`
}

// selectBalances adds the projection and the tail of the ledger that is not folded yet. One
// statement has one snapshot: an event is in the projection up to the checkpoint, and in
// the tail after it. The offset 0 makes the subquery an index probe for each event.
const selectBalances = `
with live as (
  select generation, txid, position, highest
    from projections
   where state = 'live'
), tail as (
  select position, merchant_id, stream_id, version
    from ledger_events
   where (txid, position) > ((select txid from live), (select position from live))
), legs as (
  select account, debits, credits
    from account_balances
   where generation = (select generation from live)
     and merchant_id = $1
   union all
  select leg.*
    from tail t
   cross join lateral (
         select debit, credit, amount
           from ledger_postings
          where stream_id = t.stream_id
            and version = t.version
         offset 0) p
   cross join lateral (values (p.debit, p.amount, 0), (p.credit, 0, p.amount)) leg
   where t.merchant_id = $1
), totals as (
  select left(account, -4)    as account,
         right(account, 3)    as currency,
         sum(debits)::bigint  as debits,
         sum(credits)::bigint as credits
    from legs
   group by 1, 2
)
select greatest(highest, (select max(position) from tail)) as as_of_position,
       coalesce(account, '')  as account,
       coalesce(currency, '') as currency,
       coalesce(debits, 0)    as debits,
       coalesce(credits, 0)   as credits
  from live
  left join totals on true
 order by currency, account`

// ReadBalances returns the balances of a merchant with everything that is committed, so a
// reader sees what it has caused itself. The balances of a currency add up to zero, because
// every posting is a debit and a credit. The cost is that of the merchant's accounts and of
// the events that are not folded yet.
func ReadBalances(ctx context.Context, r postgres.Querier, merchant string) (Balances, error) {
	type row struct {
		AsOfPosition int64
		Balance
	}
	rows, err := collect[row](r.Query(ctx, selectBalances, merchant))
	if err != nil {
		return Balances{}, fmt.Errorf("read the balances of %s: %w", merchant, err)
	}
	balances := Balances{Data: []Balance{}}
	for _, row := range rows {
		balances.AsOfPosition = row.AsOfPosition
		if row.Account != "" { // the row of a merchant without accounts has only the position
			row.Balance.Balance = row.Debits - row.Credits
			balances.Data = append(balances.Data, row.Balance)
		}
	}
	return balances, nil
}
