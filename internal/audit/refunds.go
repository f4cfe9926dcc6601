package audit

const oneOutcomePerRefund = `
select case
         when count(*) filter (where type like 'refund.succeeded.v%' or type like 'refund.failed.v%') > 1
         then format('%s: refund %s has more than one outcome', stream_id, data ->> 'refund_id')
       end
  from ledger_events
 where type like 'refund.%'
 group by stream_id, data ->> 'refund_id'`

// An outcome repeats the amount, except for a failure, which moves none.
const refundsEndAsRequested = `
select case
         when count(*) filter (where type like 'refund.requested.v%') <> 1
         then format('%s: refund %s was requested %s times', stream_id, data ->> 'refund_id',
                     count(*) filter (where type like 'refund.requested.v%'))
         when min(version) filter (where type not like 'refund.requested.v%')
            < min(version) filter (where type like 'refund.requested.v%')
         then format('%s: refund %s was carried out before it was requested', stream_id, data ->> 'refund_id')
         when count(distinct data ->> 'amount') > 1
         then format('%s: refund %s has the amounts %s', stream_id, data ->> 'refund_id',
                     string_agg(distinct data ->> 'amount', ' and '))
       end
  from ledger_events
 where type like 'refund.%'
 group by stream_id, data ->> 'refund_id'`

const reversedAfterSuccess = `
select case
         when count(*) filter (where type like 'refund.reversed.v%') > 1
         then format('%s: refund %s was reversed more than once', stream_id, data ->> 'refund_id')
         when not coalesce(min(version) filter (where type like 'refund.succeeded.v%')
                         < min(version) filter (where type like 'refund.reversed.v%'), false)
         then format('%s: refund %s was reversed, and had not succeeded', stream_id, data ->> 'refund_id')
         when count(distinct data ->> 'provider_refund') > 1
         then format('%s: refund %s was reversed by another of the provider''s', stream_id, data ->> 'refund_id')
       end
  from ledger_events
 where type like 'refund.%'
 group by stream_id, data ->> 'refund_id'
having bool_or(type like 'refund.reversed.v%')`

const oneRefundPerReference = `
select case
         when count(*) > 1
         then format('%s: booked for %s and %s', data ->> 'provider_refund',
                     min(data ->> 'refund_id'), max(data ->> 'refund_id'))
       end
  from ledger_events
 where type like 'refund.succeeded.v%'
 group by data ->> 'provider', data ->> 'provider_refund'`

// What is left of a charge at each version: the capture, less every refund
// requested, but for those that failed or were reversed. A failure has the
// amount of its request.
const refundsWithinCapture = `
with amounts as (
  select stream_id,
         version,
         type,
         max((data ->> 'amount')::numeric) over (partition by stream_id, data ->> 'refund_id') as amount
    from ledger_events
   where type like 'refund.%'
   union all
  select stream_id,
         version,
         type,
         (data ->> 'amount')::numeric
    from ledger_events
   where type like 'payment.captured.v%'
), changes as (
  select stream_id,
         version,
         type,
         case
           when type like 'refund.requested.v%' then -amount
           when type like 'refund.failed.v%'    then amount
           when type like 'refund.reversed.v%'  then amount
           when type like 'payment.captured.v%' then amount
           else 0
         end as change
    from amounts
), states as (
  select stream_id,
         version,
         type,
         sum(change) over (partition by stream_id order by version) as remaining
    from changes
)
select case
         when min(remaining) < 0
         then format('%s: refunds exceed the capture by %s at version %s', stream_id,
                     -min(remaining), min(version) filter (where remaining < 0))
       end
  from states
 group by stream_id
having bool_or(type like 'refund.%')`

const onlySucceededRefunded = `
select case
         when s.version is null or s.version > r.version
         then format('%s: refund %s of a charge that had not succeeded', r.stream_id, r.data ->> 'refund_id')
       end
  from ledger_events r
  left join ledger_events s
    on s.stream_id = r.stream_id
   and s.type like 'charge.succeeded.v%'
 where r.type like 'refund.requested.v%'`

const noRefundLost = "with " + waiting + `, refunds as (
  select stream_id,
         data ->> 'refund_id' as refund_id,
         bool_or(type like 'refund.succeeded.v%' or type like 'refund.failed.v%') as ended
    from ledger_events
   where type like 'refund.%'
   group by stream_id, data ->> 'refund_id'
)
select case
         when not r.ended and w.stream_id is null
         then format('%s: refund %s has no outcome, and no message is going to bring one', r.stream_id, r.refund_id)
       end
  from refunds r
  left join waiting w using (stream_id)`

func refundPromises() []promise {
	return []promise{
		{"one outcome per refund", oneOutcomePerRefund},
		{"a refund ends as it was requested", refundsEndAsRequested},
		{"a refund is reversed once, after it succeeded", reversedAfterSuccess},
		{"one refund per refund of the provider", oneRefundPerReference},
		{"refunds never exceed the capture", refundsWithinCapture},
		{"only a succeeded charge is refunded", onlySucceededRefunded},
		{"no accepted refund is lost", noRefundLost},
	}
}
