package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
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
// position of the log: everything of the merchant's that was committed when they
// were read. Read later, they are of the same position or a higher one.
type Balances struct {
	Data         []Balance `json:"data"`
	AsOfPosition int64     `json:"as_of_position"`
}

// The projection, and the tail of the log that it has not folded yet. One
// statement, so that both are of the same snapshot: what is behind the checkpoint
// in it is in the projection, what is before it is in the tail, nothing is in both.
//
// The offset keeps the subquery a probe for each event of the tail, whatever the
// planner believes of the postings.
const selectBalances = `
with live as (
  select generation,
         txid,
         position,
         highest
    from projections
   where state = 'live'
), tail as (
  select e.position,
         e.merchant_id,
         e.stream_id,
         e.version
    from ledger_events e
   where (e.txid, e.position) > ((select txid from live), (select position from live))
), postings as (
  select p.debit,
         p.credit,
         p.amount
    from tail t
   cross join lateral (
         select debit, credit, amount
           from ledger_postings
          where stream_id = t.stream_id
            and version = t.version
         offset 0) p
   where t.merchant_id = $1
), legs as (
  select account,
         debits,
         credits
    from account_balances
   where generation = (select generation from live)
     and merchant_id = $1
   union all
  select debit,
         amount,
         0
    from postings
   union all
  select credit,
         0,
         amount
    from postings
), totals as (
  select left(account, -4)    as account,
         right(account, 3)    as currency,
         sum(debits)::bigint  as debits,
         sum(credits)::bigint as credits
    from legs
   group by 1, 2
)
select greatest(live.highest, (select max(position) from tail)) as position,
       coalesce(t.account, '')  as account,
       coalesce(t.currency, '') as currency,
       coalesce(t.debits, 0)    as debits,
       coalesce(t.credits, 0)   as credits
  from live
  left join totals t on true
 order by t.currency, t.account`

// ReadBalances are a merchant's books with everything that is committed, so they
// show what the reader itself has just caused. Per currency the balances add up to
// zero, because every posting is a debit and a credit. The cost is that of the
// merchant's accounts and of the events that no worker has folded yet.
func ReadBalances(ctx context.Context, r postgres.QuerierWith, merchant string) (Balances, error) {
	balances := Balances{Data: []Balance{}}
	rows, err := r.QueryWith(ctx, groupcommit.IndexScans(), selectBalances, merchant)
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
