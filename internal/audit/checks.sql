-- The checks over the facts (facts.sql), in the order of the report. Each is a query with a row for each case: a
-- complaint where the invariant is violated, else null. Behind the name stands what a check reads: whole
-- tables, or the rows of each charge, so that an increment (increment.go) makes it too. A key's client-made text
-- stays out of reports: keys appear as the short hash under which logs know them.

-- check: one stored answer per key
-- whole tables
select case
         when answers > 1
         then format('key %s of %s for %s: %s answers',
                     left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 12), scope, operation, answers)
       end
  from (
       select scope, operation, key, count(*) as answers
         from idempotency_keys
        group by scope, operation, key) k

-- check: an answer names what it accepted
-- whole tables
select case
         when not accepted and location <> ''
         then format('%s of %s was refused, and the answer names %L', operation, scope, location)
         when accepted and stream_id is null
         then format('an answer to %s names %L: no such %s', scope, location, kind)
         when merchant_id <> scope
         then format('%s: %s %s accepted for %s, recorded for %s', stream_id, kind, id, scope, merchant_id)
         when about_another
         then format('%s: the answer that names %s %s is about something else', stream_id, kind, id)
       end
  from answers
 where kind is not null
    or not accepted

-- check: every request was accepted under one key
-- whole tables
-- A request that a refused one has made is found here: it has no key. A second cancellation,
-- under another key, gets its answer without an event.
select case
         when keys = 0 or keys > 1 and kind <> 'charge.cancel_requested'
         then format('%s: %s %s accepted under %s keys', stream_id, kind, id, keys)
       end
  from acceptances

-- check: one outcome per charge, and one capture if it succeeded
-- each charge
select case
         when captures > 1
         then format('%s: captured %s times', stream_id, captures)
         when successes + failures > 1
         then stream_id || ': more than one outcome'
         when captures = 0 and successes > 0
         then stream_id || ': succeeded, and was not captured'
         when captures > 0 and failures > 0
         then stream_id || ': failed, and was captured'
         when captures > 0 and successes = 0
         then stream_id || ': captured, and did not succeed'
       end
  from charges

-- check: no payment or refund of the provider is booked twice
-- whole tables
select case
         when times > 1
         then format('%s: booked for %s and %s', booked, first, last)
       end
  from (
       select data ->> 'payment_intent' as booked, count(*) as times, min(stream_id) as first, max(stream_id) as last
         from ledger_events
        where type like 'payment.captured.v%'
        group by data ->> 'provider', data ->> 'payment_intent'
        union all
       select data ->> 'provider_refund', count(*), min(data ->> 'refund_id'), max(data ->> 'refund_id')
         from ledger_events
        where type ~ '^refund\.(succeeded|observed)\.v'
        group by data ->> 'provider', data ->> 'provider_refund') i

-- check: one charge per order, where that is wanted
-- each charge
select case
         when failures is null
         then format('%s: holds an order that it did not ask for', stream_id)
         when failures > 0 and h.order_id is not null
         then format('%s: failed, and holds its order', stream_id)
         when failures = 0 and alive > 1
         then format('%s: one of %s charges of its order that have not failed', stream_id, alive)
         when failures = 0 and h.order_id is null
         then format('%s: has not failed, and its order is free', stream_id)
       end
  from (
       select e.stream_id, e.merchant_id, e.data ->> 'order_id' as order_id, c.failures,
              count(*) filter (where c.failures = 0) over (partition by e.merchant_id, e.data ->> 'order_id') as alive
         from ledger_events e
         join charges c using (stream_id)
        where e.type like 'charge.requested.v%'
          and e.data ->> 'one_charge_per_order' = 'true') w
  full join held_orders h using (stream_id, merchant_id, order_id)

-- check: a charge fails for a deadline after it
-- each charge
-- Whether the charge has a deadline is a rule of its stream. A failover may lead to a clock that is
-- a little behind.
select case
         when f.recorded_at < (d.data ->> 'expires_at')::timestamptz - interval '1 minute'
         then format('%s: failed as %s before its deadline', f.stream_id, f.data ->> 'code')
       end
  from ledger_events f
  left join ledger_events d
    on d.stream_id = f.stream_id
   and d.type like case f.data ->> 'code'
                     when 'expired'                then 'charge.requested.v%'
                     when 'authentication_timeout' then 'payment.action_required.v%'
                   end
 where f.type like 'charge.failed.v%'

-- check: no accepted charge or refund is lost
-- each charge
select case
         when outcomes = 0 and w.brings is null
         then format('%s:%s has no outcome, and no message is going to bring one', stream_id, refund)
       end
  from (
       select stream_id, '' as refund, successes + failures as outcomes, stream_id as brings from charges
        union all
       select stream_id, format(' refund %s', refund_id), outcomes, request from refunds where requests > 0) accepted
  left join waiting w using (brings)

-- check: a refund has one outcome, of its amount
-- each charge
-- An outcome repeats the amount, except for a failure, which moves none.
select case
         when requests <> 1
         then format('%s: refund %s was requested %s times', stream_id, refund_id, requests)
         when attempted_at < requested_at
         then format('%s: refund %s was carried out before it was requested', stream_id, refund_id)
         when outcomes > 1
         then format('%s: refund %s has more than one outcome', stream_id, refund_id)
         when cardinality(amounts) > 1
         then format('%s: refund %s has the amounts %s', stream_id, refund_id, array_to_string(amounts, ' and '))
         when reversals > 1
         then format('%s: refund %s was reversed more than once', stream_id, refund_id)
         when reversals > 0 and not coalesce(succeeded_at < reversed_at, false)
         then format('%s: refund %s was reversed, and had not succeeded', stream_id, refund_id)
         when reversals > 0 and provider_refunds > 1
         then format('%s: refund %s was reversed by another of the provider''s', stream_id, refund_id)
       end
  from refunds

-- check: refunds never exceed the capture
-- each charge
-- What is left of a charge at each version: the capture, less every refund requested, but
-- for those that failed or were reversed. A failure has the amount of its request. One made
-- outside may take what pending ones asked for, which the provider then refuses: until they
-- have failed, no other is accepted.
select case
         when least < 0
         then format('%s: refunds exceed the capture by %s at version %s', stream_id, -least, since)
       end
  from (
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
       having count(refund_id) > 0) c

-- check: every posting belongs to an event
-- each charge
-- In place of a foreign key, which would slow every append.
select case
         when e.stream_id is null
         then format('%s version %s leg %s: no such event', stream_id, version, p.leg)
       end
  from ledger_postings p left join ledger_events e using (stream_id, version)

-- check: clearing accounts are empty after the outcome
-- each charge
-- The ledger's own proof of exactly-once: what is taken, given up or released twice, or
-- never, leaves something on a clearing account. A pending refund has its amount there, and
-- nothing else may be.
select case
         when uncleared is not null
         then stream_id || ': ' || uncleared
       end
  from (
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
        group by stream_id) c

-- check: balances have what the ledger has
-- whole tables
-- The sums are compared with the ledger up to their follower's place, in one snapshot: what was
-- committed behind it is not asked of them.
select case
         when (b.debits, b.credits) is distinct from (s.debits, s.credits)
         then format('%s of %s: %s − %s, should be %s − %s', account, merchant_id,
                     coalesce(b.debits, 0), coalesce(b.credits, 0), coalesce(s.debits, 0), coalesce(s.credits, 0))
       end
  from (
       select l.merchant_id, l.account, sum(l.debits) as debits, sum(l.credits) as credits
         from legs l
         join ledger_events e using (stream_id, version)
        where (e.txid, e.position) <= ((select txid from summed), (select position from summed))
        group by l.merchant_id, l.account) s
  full join account_balances b using (merchant_id, account)

-- check: trial balance: debits equal credits in every currency
-- whole tables
-- Of the postings only the amounts and currencies are read, and of the balances only the sums.
select case
         when debits <> credits or debits <> posted
         then format('%s: %s debited, %s credited, %s posted', currency, debits, credits, posted)
       end
  from (
       select currency, sum(debits) as debits, sum(credits) as credits, sum(posted) as posted
         from (
              select right(account, 3) as currency, debits, credits, 0 as posted
                from account_balances
               union all
              select p.currency, 0, 0, p.amount
                from ledger_postings p
                join ledger_events e using (stream_id, version)
               where (e.txid, e.position) <= ((select txid from summed), (select position from summed))) sums
        group by currency) s

-- check: stock is what was supplied, and what charges hold
-- whole tables
-- Each record of supplies begins where the one before it ended, and the last ends at what is
-- supplied.
select case
         when available + s.reserved + s.sold <> s.supplied or least(available, s.reserved, s.sold) < 0
         then format('%s of %s: %s available, %s reserved and %s sold of %s supplied',
                     sku, merchant_id, available, s.reserved, s.sold, s.supplied)
         when s.supplied::text is distinct from r.supplied
         then format('%s of %s: %s supplied, recorded are %s', sku, merchant_id, coalesce(s.supplied, 0), coalesce(r.supplied, 'none'))
         when broken
         then format('%s of %s: a change of what is supplied is missing in the records', sku, merchant_id)
         when coalesce(s.reserved, 0) <> coalesce(h.reserved, 0)
         then format('%s of %s: %s reserved, charges hold %s', sku, merchant_id, coalesce(s.reserved, 0), coalesce(h.reserved, 0))
         when coalesce(s.sold, 0) <> coalesce(h.sold, 0)
         then format('%s of %s: %s sold, charges took %s', sku, merchant_id, coalesce(s.sold, 0), coalesce(h.sold, 0))
       end
  from stock s
  full join supplies r using (merchant_id, sku)
  full join held h using (merchant_id, sku)

-- check: reservations are what the events say
-- each charge
select case
         when held is null
         then format('%s: %s of %s reserved, none held', charge_id, quantity, sku)
         when quantity is null
         then format('%s: %s of %s held, never reserved', charge_id, held, sku)
         when quantity <> held
         then format('%s: %s of %s reserved, %s held', charge_id, quantity, sku, held)
         when status <> due
         then format('%s: its %s is %s, should be %s', charge_id, sku, status, due)
       end
  from (
       select charge_id, sku, p.quantity, r.quantity::text as held, r.status,
              case when c.successes > 0 then 'sold' when c.failures > 0 then 'released' else 'open' end as due
         from (
              select e.stream_id as charge_id, item.value ->> 'sku' as sku, item.value ->> 'quantity' as quantity
                from ledger_events e
               cross join lateral jsonb_path_query(e.data, '$.items[*]') as item(value)
               where e.type like 'inventory.reserved.v%') p
         full join reservations r using (charge_id, sku)
         left join charges c
           on c.stream_id = charge_id) r

-- check: every request and outcome has its message
-- each charge
-- A message is in the outbox until the inbox has it, and retention deletes it from the inbox
-- after its work is done.
select case
         when kept.message_id is null
          and not case
                    when e.type like 'charge.%requested.v%' then c.successes + c.failures > 0
                    when e.type not like 'refund%'              then n.event_id is not null or not c.notify
                    when e.type like 'refund.requested.v%'  then r.outcomes > 0
                    else n.event_id is not null or not r.notify
                  end
         then format('%s version %s (%s): no message', e.stream_id, e.version, e.type)
       end
  from ledger_events e
  join charges c using (stream_id)
  left join refunds r
    on r.stream_id = e.stream_id
   and r.refund_id = e.data ->> 'refund_id'
  left join notified n
    on n.event_id = e.event_id::text
  left join (select 'fulfillment' as receiver, message_id from sent union select receiver, message_id from inbox) kept
    on kept.message_id = e.event_id::text
   and kept.receiver = case when e.type like '%requested.v%' then 'fulfillment' else 'notification' end
 where e.type like '%requested.v%'
    or e.webhook

-- check: every message is an event of the ledger
-- each charge
-- Other messages, such as the provider's events (stripe.…), are not the ledger's: its messages
-- are known by the version in their type.
select case
         when e.event_id is null
         then format('message %s: no such event', m.message_id)
         when e.type is distinct from m.type
           or m.ordering_key is distinct from case when e.type like 'refund.requested.v%' then e.data ->> 'refund_id' else e.stream_id end
         then format('message %s: announces %s of %s, the event is %s of %s', m.message_id, m.type, m.ordering_key, e.type, e.stream_id)
       end
  from (
       select message_id, type, ordering_key from sent
        union all
       select message_id, type, ordering_key from inbox where type ~ '\.v[0-9]+$') m
  left join ledger_events e
    on e.event_id::text = m.message_id

-- check: every key with an open message has one that is first
-- whole tables
-- The end of a message makes the next one of its key first. Two transactions that did not see
-- each other may leave a key without a first message; a processor repairs that every second.
select case
         when not has_first
          and since < now() - interval '10 seconds'
          and not is_paused(receiver, '')
         then format('%s messages of %s: none is first', receiver, ordering_key)
       end
  from (
       select receiver,
              ordering_key,
              bool_or(first) as has_first,
              greatest(min(received_at) filter (where status in ('pending', 'running')),
                       max(greatest(finished_at, decided_at, due_at)) filter (where status not in ('pending', 'running'))) as since
         from inbox
        group by receiver, ordering_key
       having bool_or(status in ('pending', 'running'))) k

-- check: a running message has a living holder
-- whole tables
-- Processors take over what a silent holder has within seconds.
select case
         when coalesce(h.alive_until, i.claimed_at, i.received_at) < now() - interval '1 minute'
         then format('%s message %s of %s: %s does not live', i.receiver, i.message_id, i.ordering_key, coalesce(i.holder, 'its holder'))
       end
  from inbox i
  left join inbox_holders h using (receiver, holder)
 where i.status = 'running'

-- check: no message is overdue or a dead letter
-- whole tables
-- A message is overdue after a minute: leases and polls are seconds. No wait is longer than six
-- hours: what is due later was written while the database's clock was ahead. Workers correct it
-- within seconds.
select case
         when state is not null
         then message || ': ' || state
       end
  from (
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
         from outbox) m

-- check: a finished message was finished by its holder
-- each charge
select case
         when done_fence is distinct from fence
         then format('%s message %s: done under fence %s, its holder has %s',
                     receiver, message_id, coalesce(done_fence::text, 'none'), fence)
       end
  from inbox
 where status = 'done'

-- check: the merchant was notified once of every outcome
-- each charge
-- Between the outcome and the end of its message, an outcome that is not delivered yet is in
-- order.
select case
         when o.event_id is null
         then format('%s: notified of %s, which is no outcome with a webhook', stream_id, event_id)
         when n.times > 1
         then format('%s: notified %s times', stream_id, n.times)
         when n.event_id is null and finished.message_id is not null
         then format('%s: the message is done, and the merchant was not notified', stream_id)
       end
  from (select stream_id, event_id from outcomes where notify) o
  full join notified n using (stream_id, event_id)
  left join inbox finished
    on finished.message_id = event_id
   and finished.receiver = 'notification'
   and finished.status = 'done'
