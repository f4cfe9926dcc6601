package audit

// In place of a foreign key, which would slow every append.
const postingsHaveTheirEvent = `
select case
         when e.stream_id is null
         then format('%s version %s leg %s: no such event', p.stream_id, p.version, p.leg)
       end
  from ledger_postings p
  left join ledger_events e
    on e.stream_id = p.stream_id
   and e.version = p.version`

const trialBalance = `
with sides as (
  select right(debit, 3) as currency,
         amount
    from ledger_postings
   union all
  select right(credit, 3),
         -amount
    from ledger_postings
)
select case
         when sum(amount) <> 0
         then format('%s: debits minus credits is %s', currency, sum(amount))
       end
  from sides
 group by currency`

// In place of a check constraint, for the same reason.
const accountsOfTheChart = `
select case
         when not p.debit = any (chart.accounts)
         then format('%s version %s leg %s: debits %L', p.stream_id, p.version, p.leg, p.debit)
         when not p.credit = any (chart.accounts)
         then format('%s version %s leg %s: credits %L', p.stream_id, p.version, p.leg, p.credit)
       end
  from ledger_postings p
 cross join lateral (
       select array[
              'customer_receivable:' || p.merchant_id || ':' || p.currency,
              'merchant_pending:'    || p.merchant_id || ':' || p.currency,
              'merchant_payable:'    || p.merchant_id || ':' || p.currency,
              'refund_clearing:'     || p.merchant_id || ':' || p.currency,
              'psp_receivable:stripe:' || p.currency,
              'fee_revenue:payonce:'   || p.currency] as accounts
       ) as chart`

// The ledger's own proof of exactly-once: what is taken, given up or given back
// twice, or never, leaves something on a clearing account. A pending refund has
// its amount there, and nothing else may be.
const clearingAccountsEmpty = `
with pending as (
  select stream_id,
         max((data ->> 'amount')::bigint) as amount
    from ledger_events
   where type like 'refund.%'
   group by stream_id, data ->> 'refund_id'
  having not bool_or(type like 'refund.succeeded.v%' or type like 'refund.failed.v%')
), legs as (
  select stream_id,
         split_part(debit, ':', 1) as kind,
         amount
    from ledger_postings
   union all
  select stream_id,
         split_part(credit, ':', 1),
         -amount
    from ledger_postings
   union all
  select stream_id,
         'refund_clearing',
         amount
    from pending
), uncleared as (
  select stream_id,
         kind,
         sum(amount) as amount
    from legs
   where kind in ('customer_receivable', 'merchant_pending', 'refund_clearing')
   group by stream_id, kind
  having sum(amount) <> 0
), ended as (
  select distinct stream_id
    from ledger_events
   where type like 'charge.succeeded.v%'
      or type like 'charge.failed.v%'
)
select e.stream_id || ': ' || string_agg(format('%s is %s', u.kind, u.amount), ', ' order by u.kind)
                              filter (where u.kind is not null)
  from ended e
  left join uncleared u using (stream_id)
 group by e.stream_id`

func bookPromises() []promise {
	return []promise{
		{"every posting belongs to an event", postingsHaveTheirEvent},
		{"the books balance in every currency", trialBalance},
		{"every account is one of the chart", accountsOfTheChart},
		{"clearing accounts are empty after the outcome", clearingAccountsEmpty},
	}
}
