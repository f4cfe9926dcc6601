package audit

const oneCapturePerCharge = `
select case
         when count(*) filter (where type like 'payment.captured.v%') > 1
         then format('%s: captured %s times', stream_id, count(*) filter (where type like 'payment.captured.v%'))
       end
  from ledger_events
 group by stream_id`

const oneChargePerIntent = `
select case
         when count(*) > 1
         then format('%s: captured for %s and %s', data ->> 'payment_intent', min(stream_id), max(stream_id))
       end
  from ledger_events
 where type like 'payment.captured.v%'
 group by data ->> 'provider', data ->> 'payment_intent'`

const oneOutcomePerCharge = `
select case
         when count(*) filter (where type like 'charge.succeeded.v%' or type like 'charge.failed.v%') > 1
         then stream_id || ': more than one outcome'
       end
  from ledger_events
 group by stream_id`

const succeededExactlyIfCaptured = `
select case
         when bool_or(type like 'charge.succeeded.v%') and not bool_or(type like 'payment.captured.v%')
         then stream_id || ': succeeded, and was not captured'
         when bool_or(type like 'payment.captured.v%') and not bool_or(type like 'charge.succeeded.v%')
         then stream_id || ': captured, and did not succeed'
       end
  from ledger_events
 group by stream_id`

const failedNotCaptured = `
select case
         when bool_or(type like 'payment.captured.v%')
         then stream_id || ': failed, and was captured'
       end
  from ledger_events
 group by stream_id
having bool_or(type like 'charge.failed.v%')`

// The code alone does not tell that the charge was canceled on request.
const canceledOnRequest = `
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
    or bool_or(type like 'charge.failed.v%' and data ->> 'code' = 'canceled')`

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

const noChargeLost = "with " + waiting + `, charges as (
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
  left join waiting w using (stream_id)`

func chargePromises() []promise {
	return []promise{
		{"one capture per charge", oneCapturePerCharge},
		{"one charge per captured payment intent", oneChargePerIntent},
		{"one outcome per charge", oneOutcomePerCharge},
		{"a charge succeeded exactly if it was captured", succeededExactlyIfCaptured},
		{"a failed charge was not captured", failedNotCaptured},
		{"a charge is canceled on request, before its outcome", canceledOnRequest},
		{"no accepted charge is lost", noChargeLost},
	}
}
