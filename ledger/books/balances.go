package books

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/loop"
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

// selectBalances adds the stored sums and the postings behind them. One statement has one snapshot: an
// event is in the sums up to the follower's place, and in the tail behind it. The offset 0 makes
// the subquery an index probe for each event.
const selectBalances = `
-- books.selectBalances
with summed as (
  select txid, position, highest
    from followers
   where name = 'balances'
), tail as (
  select position, merchant_id, stream_id, version
    from ledger_events
   where (txid, position) > ((select txid from summed), (select position from summed))
), legs as (
  select account, debits, credits
    from account_balances
   where merchant_id = $1
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
  from summed
  left join totals on true
 order by currency, account`

// ReadBalances returns the balances of a merchant with everything that is committed. The balances
// of a currency add up to zero. The cost is that of the merchant's accounts and of the events
// behind the stored sums.
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

// addPage adds the postings of the next events to the sums, in the statement that moves the follower.
const addPage = nextPage + `, added as (
  insert into account_balances as a (merchant_id, account, debits, credits)
  select p.merchant_id, leg.account, sum(leg.debits), sum(leg.credits)
    from page e
   cross join lateral (
         select merchant_id, debit, credit, amount
           from ledger_postings
          where stream_id = e.stream_id
            and version = e.version
         offset 0) p
   cross join lateral (values (p.debit, p.amount, 0), (p.credit, 0, p.amount)) leg(account, debits, credits)
   group by p.merchant_id, leg.account
      on conflict (merchant_id, account) do update
     set debits  = a.debits + excluded.debits,
         credits = a.credits + excluded.credits
)
select count(*) from page having count(*) > 0`

const pageEvents = 2500 // of one transaction, during which the other readers of the ledger wait

// AddUp adds the postings of the next events of the ledger, at most 2,500, to the sums of the
// balances, and returns the number of events. Several may add up at once: each event is added once.
//
// If we die here: it is one statement.
func AddUp(ctx context.Context, db *postgres.DB) (events int, err error) {
	b := &pgx.Batch{}
	b.Queue(addPage, "balances", pageEvents).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&events}, func() error { return nil })
		return err
	})
	if err := db.Commit(ctx, b); err != nil {
		return 0, fmt.Errorf("add up the balances: %w", err)
	}
	return events, nil
}

const (
	addPause = 250 * time.Millisecond // so that a charge is not added after each of its events
	addPoll  = 5 * time.Second        // a bell that is lost costs this
)

// KeepBalances adds up until ctx ends: a moment after bell has said that events were committed, and
// every five seconds without it. Each worker runs it. It logs the first of several failures and retries.
func KeepBalances(ctx context.Context, log *slog.Logger, db *postgres.DB, bell <-chan struct{}) {
	loop.Run(ctx, log, "adding up the balances failed and is retried until it succeeds", func(ctx context.Context) (time.Duration, error) {
		loop.Pause(ctx, addPoll, bell)
		loop.Pause(ctx, addPause, nil)
		for events := pageEvents; events == pageEvents && ctx.Err() == nil; {
			var err error
			if events, err = AddUp(ctx, db); err != nil {
				return 0, err
			}
		}
		return 0, nil
	})
}

// Recounted is what a count of the whole ledger found.
type Recounted struct {
	// Events is how many events were counted, Charges how many of them open a charge, and
	// AsOfPosition the highest of their positions.
	Events       int64 `json:"events"`
	Charges      int64 `json:"charges"`
	AsOfPosition int64 `json:"as_of_position"`
	// Balances is how many accounts were compared, Different how many of them had other sums. Examples
	// describes some of these; never nil.
	Balances  int64    `json:"balances"`
	Different int64    `json:"different"`
	Examples  []string `json:"examples"`
}

const maxExamples = 5

const (
	lockBalances = `
-- books.lockBalances
select
  from followers
 where name = 'balances'
   for update`

	recount = `
-- books.recount
with summed as (
  select txid, position, highest
    from followers
   where name = 'balances'
), counted as materialized (
  select stream_id, version
    from ledger_events
   where (txid, position) <= ((select txid from summed), (select position from summed))
), sums as (
  select p.merchant_id, leg.account, sum(leg.debits) as debits, sum(leg.credits) as credits
    from counted
    join ledger_postings p using (stream_id, version)
   cross join lateral (values (p.debit, p.amount, 0), (p.credit, 0, p.amount)) leg(account, debits, credits)
   group by p.merchant_id, leg.account
), different as materialized (
  select merchant_id, account, s.debits, s.credits,
         format('account %s of %s: stored %s − %s; the ledger says %s − %s', account, merchant_id,
                coalesce(b.debits, 0), coalesce(b.credits, 0), coalesce(s.debits, 0), coalesce(s.credits, 0)) as says
    from sums s
    full join account_balances b using (merchant_id, account)
   where (s.debits, s.credits) is distinct from (b.debits, b.credits)
), replaced as (
  insert into account_balances as a (merchant_id, account, debits, credits)
  select merchant_id, account, debits, credits
    from different
   where debits is not null
      on conflict (merchant_id, account) do update
     set debits  = excluded.debits,
         credits = excluded.credits
), deleted as (
  delete from account_balances b
   using different d
   where d.debits is null
     and b.merchant_id = d.merchant_id
     and b.account = d.account
)
select (select highest from summed),
       (select count(*) from counted),
       (select count(*) from counted where version = 1),
       (select count(*) from sums) + (select count(*) from different where debits is null),
       (select count(*) from different),
       array(select says from different order by account, merchant_id limit $1)`
)

// Recount counts the whole ledger up to the place of the sums once more, and replaces the sums that
// differ. Charges and reads of balances go on meanwhile; the sums, the feed and the workers' audit go
// on when it has ended. db must be the owner's, and its sessions must not end long statements.
//
// If we die here: nothing was changed, since the count and what it replaces are one statement.
func Recount(ctx context.Context, db *postgres.DB) (Recounted, error) {
	found, b := Recounted{Examples: []string{}}, &pgx.Batch{}
	b.Queue(lockBalances)
	b.Queue(postgres.ReadWholeTables)
	b.Queue(recount, maxExamples).QueryRow(func(row pgx.Row) error {
		return row.Scan(&found.AsOfPosition, &found.Events, &found.Charges, &found.Balances, &found.Different, &found.Examples)
	})
	if err := db.Read(ctx, b); err != nil { // and writes: a commit has a time-out
		return Recounted{Examples: []string{}}, fmt.Errorf("count the balances anew: %w", err)
	}
	return found, nil
}
