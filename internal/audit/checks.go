package audit

import "slices"

// invariant is a statement about the rows, which one query checks over the facts.
type invariant struct {
	name  string
	whole bool   // wholeTables, or eachCharge: the rows of one show it, so an increment checks it too
	cases string // after "from": a row for each case
	when  string // the arms of a case expression: a complaint where it is violated
}

const (
	wholeTables = true
	eachCharge  = false
)

// invariants are in the order of the report. A key's client-made text stays out of reports:
// keys appear as the short hash under which logs know them.
var invariants = slices.Concat([]invariant{
	{"one stored answer per key", wholeTables, `(
       select scope, operation, key, count(*) as answers
         from idempotency_keys
        group by scope, operation, key) k`, `
when answers > 1
then format('key %s of %s for %s: %s answers',
            left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 12), scope, operation, answers)`},
	{"an answer names the charge that it accepted", wholeTables, `answers where kind = 'charge.requested'`, `
when stream_id is null
then format('an answer to %s names %L: no such charge', scope, location)
when merchant_id <> scope
then format('%s: accepted for %s, charged for %s', stream_id, scope, merchant_id)
when about_another
then format('%s: the answer that names it is about something else', stream_id)`},
	{"every charge was accepted under one key", wholeTables, `acceptances where kind = 'charge.requested'`, `
when keys <> 1
then format('%s: accepted under %s keys', stream_id, keys)`},
	{"an answer names the refund that it accepted", wholeTables, `answers where kind = 'refund.requested'`, `
when stream_id is null
then format('an answer to %s names %L: no such refund', scope, location)
when merchant_id <> scope
then format('%s: refund %s accepted for %s, refunded for %s', stream_id, id, scope, merchant_id)
when about_another
then format('%s: the answer that names refund %s is about something else', stream_id, id)`},
	// A refund that a refused request has made is found here: it has no key.
	{"every refund was accepted under one key", wholeTables, `acceptances where kind = 'refund.requested'`, `
when keys <> 1
then format('%s: refund %s accepted under %s keys', stream_id, id, keys)`},
	{"an answer names the charge that is to be canceled", wholeTables, `answers where kind = 'charge.cancel_requested'`, `
when stream_id is null
then format('an answer to %s names %L: not asked to be canceled', scope, location)
when merchant_id <> scope
then format('%s: canceled for %s, charged for %s', stream_id, scope, merchant_id)
when about_another
then format('%s: the answer that names it is about something else', stream_id)`},
	// A second request, under another key, gets its answer without an event.
	{"every cancellation was accepted under a key", wholeTables, `acceptances where kind = 'charge.cancel_requested'`, `
when keys = 0
then format('%s: asked to be canceled under no key', stream_id)`},
	{"a refused request's answer names no object", wholeTables, `idempotency_keys where status_code not between 200 and 299`, `
when location <> ''
then format('%s of %s was refused with %s, and the answer names %L', operation, scope, status_code, location)`},

	{"one capture per charge", eachCharge, `charges`, `
when captures > 1
then format('%s: captured %s times', stream_id, captures)`},
	{"one charge per captured payment intent", wholeTables, `(
       select data ->> 'payment_intent' as intent, count(*) as captures,
              min(stream_id) as first, max(stream_id) as last
         from ledger_events
        where type like 'payment.captured.v%'
        group by data ->> 'provider', data ->> 'payment_intent') i`, `
when captures > 1
then format('%s: captured for %s and %s', intent, first, last)`},
	{"one charge per order, where that is wanted", eachCharge, `(
       select e.stream_id, e.merchant_id, e.data ->> 'order_id' as order_id, c.failures,
              count(*) filter (where c.failures = 0) over (partition by e.merchant_id, e.data ->> 'order_id') as alive
         from ledger_events e
         join charges c using (stream_id)
        where e.type like 'charge.requested.v%'
          and e.data ->> 'one_charge_per_order' = 'true') w
  full join held_orders h using (stream_id, merchant_id, order_id)`, `
when failures is null
then format('%s: holds an order that it did not ask for', stream_id)
when failures > 0 and h.order_id is not null
then format('%s: failed, and holds its order', stream_id)
when failures = 0 and alive > 1
then format('%s: one of %s charges of its order that have not failed', stream_id, alive)
when failures = 0 and h.order_id is null
then format('%s: has not failed, and its order is free', stream_id)`},
	{"one outcome per charge", eachCharge, `charges`, `
when successes + failures > 1
then stream_id || ': more than one outcome'`},
	{"a charge succeeded exactly if it was captured", eachCharge, `charges`, `
when successes > 0 and captures = 0
then stream_id || ': succeeded, and was not captured'
when captures > 0 and successes = 0
then stream_id || ': captured, and did not succeed'`},
	{"a failed charge was not captured", eachCharge, `charges where failures > 0`, `
when captures > 0
then stream_id || ': failed, and was captured'`},
	// The failure's code alone does not show that the charge was canceled on request.
	{"a charge is canceled on request, before its outcome", eachCharge, `charges where cancellations > 0 or canceled`, `
when cancellations > 1
then stream_id || ': asked to be canceled more than once'
when cancellations = 0
then stream_id || ': canceled without a request'
when cancel_requested_at > ended_at
then stream_id || ': asked to be canceled after its outcome'`},
	// A failover may lead to a clock that is a little behind.
	{"a charge fails for a deadline that it has, after it", eachCharge, `
       ledger_events f
  left join ledger_events d
    on d.stream_id = f.stream_id
   and d.type like case f.data ->> 'code'
                     when 'expired'                then 'charge.requested.v%'
                     when 'authentication_timeout' then 'payment.action_required.v%'
                   end
 where f.type like 'charge.failed.v%'`, `
when f.data ->> 'code' in ('expired', 'authentication_timeout') and d.data ->> 'expires_at' is null
then format('%s: failed as %s without a deadline', f.stream_id, f.data ->> 'code')
when f.recorded_at < (d.data ->> 'expires_at')::timestamptz - interval '1 minute'
then format('%s: failed as %s before its deadline', f.stream_id, f.data ->> 'code')`},
	{"no accepted charge is lost", eachCharge, `charges c left join waiting w using (stream_id)`, `
when successes + failures = 0 and w.stream_id is null
then stream_id || ': has no outcome, and no message is going to bring one'`},

	{"one outcome per refund", eachCharge, `refunds`, `
when outcomes > 1
then format('%s: refund %s has more than one outcome', stream_id, refund_id)`},
	// An outcome repeats the amount, except for a failure, which moves none.
	{"a refund's outcome has the amount of its request", eachCharge, `refunds`, `
when requests <> 1
then format('%s: refund %s was requested %s times', stream_id, refund_id, requests)
when attempted_at < requested_at
then format('%s: refund %s was carried out before it was requested', stream_id, refund_id)
when cardinality(amounts) > 1
then format('%s: refund %s has the amounts %s', stream_id, refund_id, array_to_string(amounts, ' and '))`},
	{"a refund is reversed once, after it succeeded", eachCharge, `refunds where reversals > 0`, `
when reversals > 1
then format('%s: refund %s was reversed more than once', stream_id, refund_id)
when not coalesce(succeeded_at < reversed_at, false)
then format('%s: refund %s was reversed, and had not succeeded', stream_id, refund_id)
when provider_refunds > 1
then format('%s: refund %s was reversed by another of the provider''s', stream_id, refund_id)`},
	{"a refund of the provider ends one refund", wholeTables, `(
       select data ->> 'provider_refund' as refund, count(*) as successes,
              min(data ->> 'refund_id') as first, max(data ->> 'refund_id') as last
         from ledger_events
        where type ~ '^refund\.(succeeded|observed)\.v'
        group by data ->> 'provider', data ->> 'provider_refund') r`, `
when successes > 1
then format('%s: booked for %s and %s', refund, first, last)`},
	// What is left of a charge at each version: the capture, less every refund requested, but
	// for those that failed or were reversed. A failure has the amount of its request. One made
	// outside may take what pending ones asked for, which the provider then refuses: until they
	// have failed, no other is accepted.
	{"refunds never exceed the capture", eachCharge, `(
       select stream_id,
              min(remaining) as least,
              min(version) filter (where remaining < 0) as since
         from (
              select e.stream_id,
                     e.version,
                     r.refund_id,
                     case
                       when e.type like 'refund.requested.v%' then sum(moved.accepted) over past
                       else sum(moved.returned) over past
                     end as remaining
                from ledger_events e
                left join refunds r
                  on r.stream_id = e.stream_id
                 and r.refund_id = e.data ->> 'refund_id'
                 and e.type like 'refund.%'
               cross join lateral (
                     select case
                              when e.type like any (array['refund.requested.v%', 'refund.observed.v%']) then -r.amount
                              when e.type like any (array['refund.failed.v%', 'refund.reversed.v%'])    then r.amount
                              when e.type like 'payment.captured.v%'                                    then substring(e.data ->> 'amount' from '^[0-9]{1,18}$')::numeric
                              else 0
                            end as accepted,
                            case
                              when e.type like any (array['refund.succeeded.v%', 'refund.observed.v%']) then -r.amount
                              when e.type like 'refund.reversed.v%'                                     then r.amount
                              when e.type like 'payment.captured.v%'                                    then substring(e.data ->> 'amount' from '^[0-9]{1,18}$')::numeric
                              else 0
                            end as returned) moved
              window past as (partition by e.stream_id order by e.version)) states
        group by stream_id
       having count(refund_id) > 0) c`, `
when least < 0
then format('%s: refunds exceed the capture by %s at version %s', stream_id, -least, since)`},
	{"only a succeeded charge is refunded or disputed", eachCharge, `
       ledger_events r
  left join ledger_events s
    on s.stream_id = r.stream_id
   and s.type like 'charge.succeeded.v%'
 where r.type like any (array['refund.requested.v%', 'refund.observed.v%', 'charge.dispute\_opened.v%'])`, `
when s.version is null or s.version > r.version
then format('%s: refund or dispute %s of a charge that had not succeeded', r.stream_id, coalesce(r.data ->> 'refund_id', r.data ->> 'dispute_id'))`},
	{"no accepted refund is lost", eachCharge, `refunds r left join waiting w using (stream_id)`, `
when outcomes = 0 and w.stream_id is null
then format('%s: refund %s has no outcome, and no message is going to bring one', stream_id, refund_id)`},

	// In place of a foreign key, which would slow every append.
	{"every posting belongs to an event", eachCharge, `ledger_postings p left join ledger_events e using (stream_id, version)`, `
when e.stream_id is null
then format('%s version %s leg %s: no such event', stream_id, version, p.leg)`},
	// In place of a check constraint, for the same reason.
	{"every account is one of the chart", eachCharge, `
       ledger_postings p
 cross join lateral (
       select array[
              'customer_receivable:' || p.merchant_id || ':' || p.currency,
              'merchant_pending:'    || p.merchant_id || ':' || p.currency,
              'merchant_payable:'    || p.merchant_id || ':' || p.currency,
              'refund_clearing:'     || p.merchant_id || ':' || p.currency,
              'psp_receivable:stripe:' || p.currency,
              'fee_revenue:payonce:'   || p.currency] as accounts) chart`, `
when not p.debit = any (chart.accounts)
then format('%s version %s leg %s: debits %L', p.stream_id, p.version, p.leg, p.debit)
when not p.credit = any (chart.accounts)
then format('%s version %s leg %s: credits %L', p.stream_id, p.version, p.leg, p.credit)`},
	// The ledger's own proof of exactly-once: what is taken, given up or released twice, or
	// never, leaves something on a clearing account. A pending refund has its amount there, and
	// nothing else may be.
	{"clearing accounts are empty after the outcome", eachCharge, `(
       select stream_id, string_agg(format('%s is %s', u.kind, u.amount), ', ' order by u.kind)
                         filter (where u.kind is not null) as uncleared
         from charges c
         left join (
              select stream_id, kind, sum(amount) as amount
                from (
                     select stream_id, split_part(account, ':', 1) as kind, debits - credits as amount from legs
                      union all
                     select stream_id, 'refund_clearing', amount from refunds where outcomes = 0) sides
               where kind in ('customer_receivable', 'merchant_pending', 'refund_clearing')
               group by stream_id, kind
              having sum(amount) <> 0) u using (stream_id)
        where c.successes + c.failures > 0
        group by stream_id) c`, `
when uncleared is not null
then stream_id || ': ' || uncleared`},

	// A projection is compared with the ledger at its checkpoint, in one snapshot: what was
	// committed after the checkpoint is not asked of it.
	{"every charge of the list has events", wholeTables, `
       charge_list l
  join live p using (generation)
  left join ledger_events e
    on e.stream_id = l.charge_id
   and e.version = 1
   and (e.txid, e.position) <= (p.txid, p.position)`, `
when e.stream_id is null
then l.charge_id || ': listed, and has no event'`},
	{"projected balances are the sums of the postings", wholeTables, `(
       select l.merchant_id, l.account, sum(l.debits) as debits, sum(l.credits) as credits
         from legs l
         join ledger_events e using (stream_id, version)
        where (e.txid, e.position) <= ((select txid from live), (select position from live))
        group by l.merchant_id, l.account) s
  full join (select * from account_balances where generation = (select generation from live)) p
 using (merchant_id, account)`, `
when s.account is null
then format('%s of %s: %s − %s, and nothing was posted', account, merchant_id, p.debits, p.credits)
when p.account is null
then format('%s of %s: nothing, should be %s − %s', account, merchant_id, s.debits, s.credits)
when (p.debits, p.credits) <> (s.debits, s.credits)
then format('%s of %s: %s − %s, should be %s − %s', account, merchant_id, p.debits, p.credits, s.debits, s.credits)`},
	// Of the postings only the amounts and currencies are read, and of the balances only the sums.
	{"trial balance: debits equal credits in every currency", wholeTables, `(
       select currency, sum(debits) as debits, sum(credits) as credits, sum(posted) as posted
         from (
              select right(account, 3) as currency, debits, credits, 0 as posted
                from account_balances
               where generation = (select generation from live)
               union all
              select p.currency, 0, 0, p.amount
                from ledger_postings p
                join ledger_events e using (stream_id, version)
               where (e.txid, e.position) <= ((select txid from live), (select position from live))) sums
        group by currency) s`, `
when debits <> credits or debits <> posted
then format('%s: %s debited, %s credited, %s posted', currency, debits, credits, posted)`},

	{"stock adds up to what was supplied", wholeTables, `stock`, `
when available + reserved + sold <> supplied or least(available, reserved, sold) < 0
then format('%s of %s: %s available, %s reserved and %s sold of %s supplied',
            sku, merchant_id, available, reserved, sold, supplied)`},
	// Each record begins where the one before it ended, and the last ends at what is supplied.
	{"supplied stock is what operators recorded", wholeTables, `stock s full join supplies r using (merchant_id, sku)`, `
when s.supplied::text is distinct from r.supplied
then format('%s of %s: %s supplied, recorded are %s', sku, merchant_id, coalesce(s.supplied, 0), coalesce(r.supplied, 'none'))
when broken
then format('%s of %s: a change of what is supplied is missing in the records', sku, merchant_id)`},
	{"reserved stock is held by charges", wholeTables, `stock s full join held h using (merchant_id, sku)`, `
when coalesce(s.reserved, 0) <> coalesce(h.reserved, 0)
then format('%s of %s: %s reserved, charges hold %s', sku, merchant_id, coalesce(s.reserved, 0), coalesce(h.reserved, 0))`},
	{"sold stock was taken by charges", wholeTables, `stock s full join held h using (merchant_id, sku)`, `
when coalesce(s.sold, 0) <> coalesce(h.sold, 0)
then format('%s of %s: %s sold, charges took %s', sku, merchant_id, coalesce(s.sold, 0), coalesce(h.sold, 0))`},
	{"reservations are those of the events", eachCharge, `(
       select e.stream_id as charge_id, item.value ->> 'sku' as sku, item.value ->> 'quantity' as quantity
         from ledger_events e
        cross join lateral jsonb_path_query(e.data, '$.items[*]') as item(value)
        where e.type like 'inventory.reserved.v%') p
  full join reservations r using (charge_id, sku)`, `
when r.charge_id is null
then format('%s: %s of %s reserved, none held', charge_id, p.quantity, sku)
when p.charge_id is null
then format('%s: %s of %s held, never reserved', charge_id, r.quantity, sku)
when p.quantity is distinct from r.quantity::text
then format('%s: %s of %s reserved, %s held', charge_id, p.quantity, sku, r.quantity)`},
	{"a reservation follows its charge's outcome", eachCharge, `(
       select r.charge_id, r.sku, r.status,
              case when c.successes > 0 then 'sold' when c.failures > 0 then 'released' when c.stream_id is not null then 'open' end as due
         from reservations r
         left join charges c
           on c.stream_id = r.charge_id) r`, `
when status is distinct from due
then format('%s: its %s is %s, should be %s', charge_id, sku, status, coalesce(due, 'without a charge'))`},
}, invariantsOfMessages)
