package audit

var invariantsOfMessages = []invariant{
	// Retention takes a message away after its work is done, the oldest first. So an event
	// without a message is in order only if it is older than every message that is left, and
	// its work is done.
	{"every request and outcome has its message", eachCharge, `
       ledger_events e
  join charges c using (stream_id)
  join (values ('fulfillment',  (select min(transaction_id) from public.outbox where topic = 'charges')),
               ('notification', (select min(transaction_id) from public.outbox where topic = 'notification'))) oldest (receiver, txid)
    on oldest.receiver = case when e.type like '%requested.v%' then 'fulfillment' else 'notification' end
  left join refunds r
    on r.stream_id = e.stream_id
   and r.refund_id = e.data ->> 'refund_id'
  left join notified n
    on n.event_id = e.event_id::text
  left join (select receiver, message_id from sent union select receiver, message_id from inbox) kept
    on kept.message_id = e.event_id::text
   and kept.receiver = oldest.receiver
 where e.type like any (array['charge.requested.v%', 'charge.cancel\_requested.v%', 'charge.succeeded.v%', 'charge.failed.v%', 'charge.dispute%',
                               'payment.action\_required.v%', 'refund.requested.v%', 'refund.succeeded.v%', 'refund.failed.v%', 'refund.reversed.v%', 'refund.observed.v%'])`, `
when kept.message_id is null
 and (e.txid >= oldest.txid
      or not case
               when e.type like 'charge.%requested.v%' then c.successes + c.failures > 0
               when e.type not like 'refund%'              then n.event_id is not null or not c.notify
               when e.type like 'refund.requested.v%'  then r.outcomes > 0
               else n.event_id is not null or not r.notify
             end)
then format('%s version %s (%s): no message', e.stream_id, e.version, e.type)`},
	// The inbox also takes messages that are not the ledger's, such as the provider's events
	// (stripe.…); the ledger's are known by the version in their type. The outbox has no topics
	// but those of the ledger.
	{"every message is an event of the ledger", eachCharge, `(
       select message_id, type, stream_id, txid from sent
        union all
       select message_id, type, ordering_key, null from inbox where type ~ '\.v[0-9]+$') m
  left join ledger_events e
    on e.event_id::text = m.message_id`, `
when e.event_id is null
then format('message %s: no such event', m.message_id)
when e.type is distinct from m.type or e.stream_id is distinct from m.stream_id
then format('message %s: announces %s of %s, the event is %s of %s', m.message_id, m.type, m.stream_id, e.type, e.stream_id)
when e.txid <> m.txid
then format('message %s: committed apart from its event', m.message_id)`},
	// The consumer group stores a message before it moves its offset.
	{"every message below the offset was received", eachCharge, `
       sent
  left join inbox i using (receiver, message_id)
 where passed`, `
when i.status is null
then format('message %s: passed by the reader and never received', message_id)`},
	// A message is overdue after a minute: leases and polls are seconds. No lease and no wait is
	// longer than six hours: what is due later was written while the database's clock was ahead.
	// Workers correct it within seconds. A message is held back only while others of its
	// partition run.
	{"no message is overdue or a dead letter", wholeTables, `(
       select case
                when i.status = 'dead' then 'dead letter'
                when i.status in ('pending', 'running')
                 and i.due_at < now() - interval '1 minute'
                 and older.id is null
                 and not is_paused(i.receiver, i.partition_key)
                then i.status || ' and overdue'
                when i.due_at is null
                 and i.received_at < now() - interval '1 minute'
                 and older.id is null
                 and not exists (
                       select
                         from inbox running
                        where running.receiver = i.receiver
                          and running.partition_key = i.partition_key
                          and running.status = 'running')
                 and not is_paused(i.receiver, i.partition_key)
                then 'held back, and nothing of its partition runs'
                when i.status in ('pending', 'running')
                 and i.due_at > now() + interval '361 minutes'
                then i.status || ' and due later than any rule allows'
              end as state,
              format('%s message %s of %s', i.receiver, i.message_id, i.ordering_key) as message
         from inbox i
         left join lateral (
              select id
                from inbox older
               where older.receiver = i.receiver
                 and older.ordering_key = i.ordering_key
                 and older.status in ('pending', 'running')
                 and older.id < i.id
                 and i.status in ('pending', 'running')
               limit 1) older
           on true
        union all
       select case when created_at < now() - interval '1 minute'
                    and not is_paused('', '')
                   then 'no consumer group receives it' end,
              format('message %s', message_id)
         from sent
        where not passed
        union all
       select 'in quarantine, with another payload', format('%s message %s', receiver, message_id)
         from inbox_quarantine) m`, `
when state is not null
then message || ': ' || state`},
	{"a finished message was finished by its holder", eachCharge, `inbox where status = 'done'`, `
when done_fence is distinct from fence
then format('%s message %s: done under fence %s, its holder has %s',
            receiver, message_id, coalesce(done_fence::text, 'none'), fence)`},
	// Between the outcome and the end of its message, an outcome that is not delivered yet is in
	// order.
	{"the merchant was notified once of every outcome", eachCharge, `
       (select stream_id, event_id from outcomes where notify) o
  full join notified n using (stream_id, event_id)
  left join inbox finished
    on finished.message_id = event_id
   and finished.receiver = 'notification'
   and finished.status = 'done'`, `
when o.event_id is null
then format('%s: notified of %s, which is no outcome with a webhook', stream_id, event_id)
when n.times > 1
then format('%s: notified %s times', stream_id, n.times)
when n.event_id is null and finished.message_id is not null
then format('%s: the message is done, and the merchant was not notified', stream_id)`},
}
