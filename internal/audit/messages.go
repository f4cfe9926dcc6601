package audit

var messageChecks = []statement{
	// Retention takes a message away after its work is done, the oldest first. So an
	// event without a message is in order only if it is older than every message
	// that is left, and its work is done.
	{"every request and outcome has its message", `
with kept as (
  select message_id from outbox
   union
  select message_id from inbox
), oldest as (
  select t.topic,
         (select o.transaction_id
            from outbox o
           where o.topic = t.topic
           order by o.transaction_id
           limit 1) as txid
    from unnest(array['charges', 'outcomes']) as t (topic)
), charges as (
  select stream_id,
         bool_or(type like 'charge.succeeded.v%' or type like 'charge.failed.v%')       as ended,
         bool_or(type like 'charge.requested.v%' and data ->> 'notify' = 'true')        as wants
    from ledger_events
   group by stream_id
), refunds as (
  select stream_id,
         data ->> 'refund_id'                                                          as refund_id,
         bool_or(type like 'refund.succeeded.v%' or type like 'refund.failed.v%')       as ended,
         bool_or(type like 'refund.requested.v%' and data ->> 'notify' = 'true')        as wants
    from ledger_events
   where type like 'refund.%'
   group by stream_id, data ->> 'refund_id'
), told as (
  select distinct
         data ->> 'event_id' as event_id
    from ledger_events
   where type like 'merchant.notified.v%'
)
select case
         when k.message_id is null
          and (e.txid >= oldest.txid
               or not case
                        when e.type like 'charge.%requested.v%' then c.ended
                        when e.type like 'charge.%'             then t.event_id is not null or not c.wants
                        when e.type like 'refund.requested.v%'  then r.ended
                        else t.event_id is not null or not r.wants
                      end)
         then format('%s version %s (%s): no message', e.stream_id, e.version, e.type)
       end
  from ledger_events e
  join charges c using (stream_id)
  join oldest
    on oldest.topic = case when e.type ~ 'requested\.v' then 'charges' else 'outcomes' end
  left join refunds r
    on r.stream_id = e.stream_id
   and r.refund_id = e.data ->> 'refund_id'
  left join told t
    on t.event_id = e.event_id::text
  left join kept k
    on k.message_id = e.event_id::text
 where e.type ~ '^charge\.(requested|cancel_requested|succeeded|failed)\.v'
    or e.type ~ '^refund\.(requested|succeeded|failed|reversed)\.v'`},
	// The inbox also takes messages that are not the ledger's, such as the
	// provider's events (stripe.…); the ledger's are known by the version in their
	// type.
	{"every message is an event of the ledger", `
with messages as (
  select message_id,
         metadata ->> 'type'         as type,
         metadata ->> 'ordering_key' as stream_id,
         transaction_id              as txid
    from outbox
   where topic in ('charges', 'outcomes')
   union all
  select message_id,
         type,
         ordering_key,
         null
    from inbox
   where type ~ '\.v[0-9]+$'
)
select case
         when e.event_id is null
         then format('message %s: no such event', m.message_id)
         when e.type is distinct from m.type or e.stream_id is distinct from m.stream_id
         then format('message %s: announces %s of %s, the event is %s of %s',
                     m.message_id, m.type, m.stream_id, e.type, e.stream_id)
         when e.txid <> m.txid
         then format('message %s: committed apart from its event', m.message_id)
       end
  from messages m
  left join ledger_events e
    on e.event_id::text = m.message_id`},
	// The consumer group of the inbox stores a message before it moves its offset. What other
	// groups have read says nothing about the inbox.
	{"every message that was passed was received", `
select case
         when i.message_id is null
         then format('message %s: passed by the reader and never received', o.message_id)
       end
  from outbox o
  join outbox_offsets f
    on f.topic = o.topic
   and f.consumer_group = 'inbox'
   and (f.transaction_id, f."offset") >= (o.transaction_id, o."offset")
  left join (select distinct message_id from inbox) i
    on i.message_id = o.message_id`},
	// A message is overdue after a minute: leases and polls are seconds. No lease and no
	// wait is longer than an hour: what is due later was written while the database's clock
	// was ahead. Workers correct it within seconds. A message is held back only while others
	// of its partition run.
	{"no message is stuck", `
select case
         when i.status = 'dead'
         then format('%s message %s of %s: parked', i.receiver, i.message_id, i.ordering_key)
         when i.status in ('pending', 'running')
          and i.due_at < now() - interval '1 minute'
          and not exists (
                select
                  from inbox older
                 where older.receiver = i.receiver
                   and older.ordering_key = i.ordering_key
                   and older.status in ('pending', 'running')
                   and older.id < i.id)
         then format('%s message %s of %s: %s and overdue', i.receiver, i.message_id, i.ordering_key, i.status)
         when i.due_at is null
          and i.received_at < now() - interval '1 minute'
          and not exists (
                select
                  from inbox running
                 where running.receiver = i.receiver
                   and running.partition_key = i.partition_key
                   and running.status = 'running')
         then format('%s message %s of %s: held back, and nothing of its partition runs', i.receiver, i.message_id, i.ordering_key)
         when i.status in ('pending', 'running')
          and i.due_at > now() + interval '61 minutes'
         then format('%s message %s of %s: %s and due later than any rule allows', i.receiver, i.message_id, i.ordering_key, i.status)
       end
  from inbox i
 union all
select case
         when o.created_at < now() - interval '1 minute'
         then format('message %s: nobody receives it', o.message_id)
       end
  from outbox o
 where not exists (
         select
           from outbox_offsets f
          where f.topic = o.topic
            and f.consumer_group = 'inbox'
            and (f.transaction_id, f."offset") >= (o.transaction_id, o."offset"))`},
	{"a finished message was finished by its holder", `
select case
         when done_fence is distinct from fence
         then format('%s message %s: done under fence %s, its holder has %s',
                     receiver, message_id, coalesce(done_fence::text, 'none'), fence)
       end
  from inbox
 where status = 'done'`},
	{"nothing is in quarantine", `
with strange as (
  select receiver,
         message_id,
         count(*) as payloads
    from inbox_quarantine
   group by receiver, message_id
)
select case
         when s.payloads > 0
         then format('%s message %s: %s payloads beside the first', receiver, message_id, s.payloads)
       end
  from inbox i
  full join strange s using (receiver, message_id)`},
	// Between the outcome and the end of its message, an outcome that is not delivered yet is in
	// order.
	{"the merchant was told once of every outcome", `
with wanted as (
  select o.event_id::text as event_id,
         o.stream_id
    from ledger_events o
    join ledger_events r
      on r.stream_id = o.stream_id
     and r.data ->> 'refund_id' is not distinct from o.data ->> 'refund_id'
     and r.type ~ '^(charge|refund)\.requested\.v'
     and r.data ->> 'notify' = 'true'
   where o.type ~ '^(charge\.(succeeded|failed)|refund\.(succeeded|failed|reversed))\.v'
), told as (
  select stream_id,
         data ->> 'event_id' as event_id,
         count(*)            as times
    from ledger_events
   where type like 'merchant.notified.v%'
   group by stream_id, data ->> 'event_id'
), finished as (
  select message_id
    from inbox
   group by message_id
  having bool_and(status = 'done')
)
select case
         when w.event_id is null
         then format('%s: told about %s, which is no outcome that it wanted', stream_id, event_id)
         when t.times > 1
         then format('%s: told %s times', stream_id, t.times)
         when t.event_id is null and f.message_id is not null
         then format('%s: the message is done, and the merchant was not told', stream_id)
       end
  from wanted w
  full join told t using (stream_id, event_id)
  left join finished f
    on f.message_id = w.event_id`},
}
