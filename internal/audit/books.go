package audit

var postingChecks = []statement{
	// In place of a foreign key, which would slow every append.
	{"every posting belongs to an event", `
select case
         when e.stream_id is null
         then format('%s version %s leg %s: no such event', p.stream_id, p.version, p.leg)
       end
  from ledger_postings p
  left join ledger_events e
    on e.stream_id = p.stream_id
   and e.version = p.version`},
	{"the books balance in every currency", `
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
 group by currency`},
	// In place of a check constraint, for the same reason.
	{"every account is one of the chart", `
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
       ) as chart`},
	// The ledger's own proof of exactly-once: what is taken, given up or given back
	// twice, or never, leaves something on a clearing account. A pending refund has
	// its amount there, and nothing else may be.
	{"clearing accounts are empty after the outcome", `
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
 group by e.stream_id`},
}

// The projections are compared with the ledger at their checkpoint, in one snapshot: what
// was committed after the checkpoint is not asked of them.
var projectionChecks = []statement{
	{"the list shows no charge that is not there", `
select case
         when e.stream_id is null
         then l.charge_id || ': listed, and has no event'
       end
  from charge_list l
  join projections p
    on p.generation = l.generation
   and p.state = 'live'
  left join ledger_events e
    on e.stream_id = l.charge_id
   and e.version = 1
   and (e.txid, e.position) <= (p.txid, p.position)`},
	{"projected balances are the sums of the postings", `
with live as (
  select generation,
         txid,
         position
    from projections
   where state = 'live'
), legs as (
  select p.merchant_id,
         p.debit,
         p.credit,
         p.amount
    from ledger_postings p
    join ledger_events e using (stream_id, version)
   where (e.txid, e.position) <= ((select txid from live), (select position from live))
), sums as (
  select merchant_id,
         account,
         sum(debits)  as debits,
         sum(credits) as credits
    from (
         select merchant_id, debit as account, amount as debits, 0 as credits from legs
          union all
         select merchant_id, credit, 0, amount from legs) as sides
   group by merchant_id, account
), projected as (
  select merchant_id,
         account,
         debits,
         credits
    from account_balances
   where generation = (select generation from live)
)
select case
         when s.account is null
         then format('%s of %s: %s − %s, and nothing was posted', account, merchant_id, p.debits, p.credits)
         when p.account is null
         then format('%s of %s: nothing, should be %s − %s', account, merchant_id, s.debits, s.credits)
         when (p.debits, p.credits) <> (s.debits, s.credits)
         then format('%s of %s: %s − %s, should be %s − %s', account, merchant_id, p.debits, p.credits, s.debits, s.credits)
       end
  from sums s
  full join projected p using (merchant_id, account)`},
}
