package audit

// What has no outcome is on its way as long as a message about its charge waits
// for the receiver that carries out: in the outbox, where the consumer group that
// feeds the inbox has not passed it, or in the inbox, where it is not done. A parked message waits for a human;
// another check shows it. A message that a human discarded brings nothing.
const waiting = `waiting as (
  select ordering_key as stream_id
    from inbox
   where status not in ('done', 'discarded')
     and receiver = 'fulfillment'
   union
  select o.metadata ->> 'ordering_key'
    from outbox o
   where o.metadata ->> 'type' ~ 'requested\.v[0-9]+$'
     and not exists (
           select
             from outbox_offsets f
            where f.topic = o.topic
              and f.consumer_group = 'inbox'
              and (f.transaction_id, f."offset") >= (o.transaction_id, o."offset"))
)`

var chargeChecks = []statement{
	{"one capture per charge", `
select case
         when count(*) filter (where type like 'payment.captured.v%') > 1
         then format('%s: captured %s times', stream_id, count(*) filter (where type like 'payment.captured.v%'))
       end
  from ledger_events
 group by stream_id`},
	{"one charge per captured payment intent", `
select case
         when count(*) > 1
         then format('%s: captured for %s and %s', data ->> 'payment_intent', min(stream_id), max(stream_id))
       end
  from ledger_events
 where type like 'payment.captured.v%'
 group by data ->> 'provider', data ->> 'payment_intent'`},
	{"one outcome per charge", `
select case
         when count(*) filter (where type like 'charge.succeeded.v%' or type like 'charge.failed.v%') > 1
         then stream_id || ': more than one outcome'
       end
  from ledger_events
 group by stream_id`},
	{"a charge succeeded exactly if it was captured", `
select case
         when bool_or(type like 'charge.succeeded.v%') and not bool_or(type like 'payment.captured.v%')
         then stream_id || ': succeeded, and was not captured'
         when bool_or(type like 'payment.captured.v%') and not bool_or(type like 'charge.succeeded.v%')
         then stream_id || ': captured, and did not succeed'
       end
  from ledger_events
 group by stream_id`},
	{"a failed charge was not captured", `
select case
         when bool_or(type like 'payment.captured.v%')
         then stream_id || ': failed, and was captured'
       end
  from ledger_events
 group by stream_id
having bool_or(type like 'charge.failed.v%')`},
	// The failure's code alone does not show that the charge was canceled on request.
	{"a charge is canceled on request, before its outcome", `
select case
         when count(*) filter (where type like 'charge.cancel_requested.v%') > 1
         then stream_id || ': asked to be canceled more than once'
         when not bool_or(type like 'charge.cancel_requested.v%')
         then stream_id || ': canceled, and nobody asked for it'
         when min(version) filter (where type like 'charge.cancel_requested.v%')
            > min(version) filter (where type like 'charge.succeeded.v%' or type like 'charge.failed.v%')
         then stream_id || ': asked to be canceled after its outcome'
       end
  from ledger_events
 group by stream_id
having bool_or(type like 'charge.cancel_requested.v%')
    or bool_or(type like 'charge.failed.v%' and data ->> 'code' = 'canceled')`},
	{"no accepted charge is lost", "with " + waiting + `, charges as (
  select stream_id,
         bool_or(type like 'charge.succeeded.v%' or type like 'charge.failed.v%') as ended
    from ledger_events
   group by stream_id
)
select case
         when not c.ended and w.stream_id is null
         then c.stream_id || ': has no outcome, and no message is going to bring one'
       end
  from charges c
  left join waiting w using (stream_id)`},
}

var refundChecks = []statement{
	{"one outcome per refund", `
select case
         when count(*) filter (where type like 'refund.succeeded.v%' or type like 'refund.failed.v%') > 1
         then format('%s: refund %s has more than one outcome', stream_id, data ->> 'refund_id')
       end
  from ledger_events
 where type like 'refund.%'
 group by stream_id, data ->> 'refund_id'`},
	// An outcome repeats the amount, except for a failure, which moves none.
	{"a refund ends as it was requested", `
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
 group by stream_id, data ->> 'refund_id'`},
	{"a refund is reversed once, after it succeeded", `
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
having bool_or(type like 'refund.reversed.v%')`},
	{"one refund per refund of the provider", `
select case
         when count(*) > 1
         then format('%s: booked for %s and %s', data ->> 'provider_refund',
                     min(data ->> 'refund_id'), max(data ->> 'refund_id'))
       end
  from ledger_events
 where type like 'refund.succeeded.v%'
 group by data ->> 'provider', data ->> 'provider_refund'`},
	// What is left of a charge at each version: the capture, less every refund
	// requested, but for those that failed or were reversed. A failure has the
	// amount of its request.
	{"refunds never exceed the capture", `
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
having bool_or(type like 'refund.%')`},
	{"only a succeeded charge is refunded", `
select case
         when s.version is null or s.version > r.version
         then format('%s: refund %s of a charge that had not succeeded', r.stream_id, r.data ->> 'refund_id')
       end
  from ledger_events r
  left join ledger_events s
    on s.stream_id = r.stream_id
   and s.type like 'charge.succeeded.v%'
 where r.type like 'refund.requested.v%'`},
	{"no accepted refund is lost", "with " + waiting + `, refunds as (
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
  left join waiting w using (stream_id)`},
}
