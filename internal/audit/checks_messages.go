package audit

var invariantsOfMessages = []invariant{
	// A message is in the outbox until the inbox has it, and retention deletes it from the inbox
	// after its work is done.
	{"every request and outcome has its message", eachCharge, `
       ledger_events e
  join charges c using (stream_id)
  left join refunds r
    on r.stream_id = e.stream_id
   and r.refund_id = e.data ->> 'refund_id'
  left join notified n
    on n.event_id = e.event_id::text
  left join (select receiver, message_id from sent union select receiver, message_id from inbox) kept
    on kept.message_id = e.event_id::text
   and kept.receiver = case when e.type like '%requested.v%' then 'fulfillment' else 'notification' end
 where e.type like '%requested.v%'
    or e.webhook`, `
when kept.message_id is null
 and not case
           when e.type like 'charge.%requested.v%' then c.successes + c.failures > 0
           when e.type not like 'refund%'              then n.event_id is not null or not c.notify
           when e.type like 'refund.requested.v%'  then r.outcomes > 0
           else n.event_id is not null or not r.notify
         end
then format('%s version %s (%s): no message', e.stream_id, e.version, e.type)`},
	// Other messages, such as the provider's events (stripe.…), are not the ledger's: its messages
	// are known by the version in their type.
	{"every message is an event of the ledger", eachCharge, `(
       select message_id, type, ordering_key from sent
        union all
       select message_id, type, ordering_key from inbox where type ~ '\.v[0-9]+$') m
  left join ledger_events e
    on e.event_id::text = m.message_id`, `
when e.event_id is null
then format('message %s: no such event', m.message_id)
when e.type is distinct from m.type
  or m.ordering_key is distinct from case when e.type like 'refund.requested.v%' then e.data ->> 'refund_id' else e.stream_id end
then format('message %s: announces %s of %s, the event is %s of %s', m.message_id, m.type, m.ordering_key, e.type, e.stream_id)`},
	// The end of a message makes the next one of its key first. Two transactions that did not see
	// each other may leave a key without a first message; a processor repairs that every second.
	{"every key with an open message has one that is first", wholeTables, `(
       select receiver,
              ordering_key,
              bool_or(first) as has_first,
              greatest(min(received_at) filter (where status in ('pending', 'running')),
                       max(greatest(finished_at, decided_at, due_at)) filter (where status not in ('pending', 'running'))) as since
         from inbox
        group by receiver, ordering_key
       having bool_or(status in ('pending', 'running'))) k`, `
when not has_first
 and since < now() - interval '10 seconds'
 and not is_paused(receiver, '')
then format('%s messages of %s: none is first', receiver, ordering_key)`},
	// Processors take over what a silent holder has within seconds.
	{"a running message has a living holder", wholeTables, `
       inbox i
  left join inbox_holders h using (receiver, holder)
 where i.status = 'running'`, `
when coalesce(h.alive_until, i.claimed_at, i.received_at) < now() - interval '1 minute'
then format('%s message %s of %s: %s does not live', i.receiver, i.message_id, i.ordering_key, coalesce(i.holder, 'its holder'))`},
	// A message is overdue after a minute: leases and polls are seconds. No wait is longer than six
	// hours: what is due later was written while the database's clock was ahead. Workers correct it
	// within seconds.
	{"no message is overdue or a dead letter", wholeTables, `(
       select case
                when status = 'dead'
                then 'dead letter'
                when first
                 and status = 'pending'
                 and due_at < now() - interval '1 minute'
                 and not is_paused(receiver, partition_key)
                then 'pending and overdue'
                when status = 'pending'
                 and due_at > now() + interval '361 minutes'
                then 'pending and due later than any rule allows'
              end as state,
              format('%s message %s of %s', receiver, message_id, ordering_key) as message
         from inbox
        union all
       select case
                when created_at < now() - interval '1 minute'
                 and not is_paused('', '')
                then 'no worker receives it'
              end,
              format('message %s', message_id)
         from outbox) m`, `
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
