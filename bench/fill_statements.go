package main

// originals hold the rows of the charge that is copied, apart from the tables that
// grow.
const originals = `
create unlogged table original_events as
select version, type, schema_version, merchant_id, data::text as data, metadata::text as metadata
  from ledger_events;
create unlogged table original_postings as
select version, leg, merchant_id, debit, credit, amount, currency
  from ledger_postings;
create unlogged table original_key as
select scope, operation, convert_from(request, 'UTF8') as request, status_code, content_type, location,
       convert_from(body, 'UTF8') as body, expires_at - created_at as kept
  from idempotency_keys;
create unlogged table original_outbox as
select "offset" as number, topic, message_id, convert_from(payload, 'UTF8') as payload, metadata::text as metadata
  from outbox;
create unlogged table original_inbox as
select id as number, receiver, message_id, type, convert_from(payload, 'UTF8') as payload, metadata::text as metadata,
       status, attempts, waits, fence, done_fence, holder
  from inbox;
create unlogged table original_reservation as
select merchant_id, quantity, status
  from reservations;
create unlogged table original_listed as
select generation, merchant_id, status, version, view::text as view
  from charge_list`

const dropOriginals = `
drop table original_events, original_postings, original_key, original_outbox, original_inbox, original_reservation, original_listed`

// copies are the charges of one chunk. Ids begin with their time, as real ones do;
// the provider's are random.
const copies = `
with copies as materialized (
  select n,
         id,
         md5('order' || id)::uuid::text                      as order_id,
         'pi_' || left(md5('intent' || id), 24)              as intent,
         'sku-' || lpad((n %% %[1]d)::text, 3, '0')           as sku,
         md5('1' || id)::uuid                                as requested,
         md5('%[2]d' || id)::uuid                            as outcome,
         at,
         to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as at_text
    from (select n,
                 at,
                 'ch_' || lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || left(md5(n::text), 20) as id
            from (select n,
                         date_trunc('second', $5::timestamptz - $4::interval * (1 - n / $3::float8)) as at
                    from generate_series($1::int, $2::int) as n) as times) as ids
)`

const (
	copyEvents = `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at, recorded_at)
select md5(e.version || c.id)::uuid, c.id, e.version, e.type, e.schema_version, e.merchant_id,
       {e.data}::jsonb, {e.metadata}::jsonb, c.at, c.at + e.version * interval '10 ms'
  from copies c
 cross join original_events e
 order by c.n, e.version`

	copyPostings = `
insert into ledger_postings
       (stream_id, version, leg, merchant_id, debit, credit, amount, currency)
select c.id, p.version, p.leg, p.merchant_id, p.debit, p.credit, p.amount, p.currency
  from copies c
 cross join original_postings p
 order by c.n, p.version, p.leg`

	copyKey = `
insert into idempotency_keys
       (scope, operation, key, fingerprint, request, status_code, content_type, location, body, created_at, expires_at)
select k.scope, k.operation, c.order_id, sha256(convert_to(c.id, 'UTF8')),
       convert_to({k.request}, 'UTF8'), k.status_code, k.content_type, {k.location}, convert_to({k.body}, 'UTF8'), c.at, c.at + k.kept
  from copies c
 cross join original_key k
 order by c.n`

	copyOutbox = `
insert into outbox
       (topic, message_id, payload, metadata, created_at)
select o.topic, {o.message_id}, convert_to({o.payload}, 'UTF8'), {o.metadata}::jsonb, c.at
  from copies c
 cross join original_outbox o
 where c.at > now() - interval '23 hours'
 order by c.n, o.number`

	copyInbox = `
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, due_at, attempts, waits, fence, done_fence,
        holder, received_at, finished_at)
select i.receiver, i.message_id, i.ordering_key, i.type, i.payload, i.metadata, sha256(i.payload), i.status, i.at, i.attempts, i.waits,
       i.fence, i.done_fence, i.holder, i.at, i.at
  from (select i.receiver, {i.message_id} as message_id, c.id as ordering_key, i.type,
               convert_to({i.payload}, 'UTF8') as payload, {i.metadata}::jsonb as metadata,
               i.status, i.attempts, i.waits, i.fence, i.done_fence, i.holder, c.at, c.n, i.number
          from copies c
         cross join original_inbox i) as i
 order by i.n, i.number`

	copyReservation = `
insert into reservations
       (charge_id, merchant_id, sku, quantity, status)
select c.id, r.merchant_id, c.sku, r.quantity, r.status
  from copies c
 cross join original_reservation r
 order by c.n`

	copyListed = `
insert into charge_list
       (generation, charge_id, merchant_id, order_id, status, created_at, version, view)
select l.generation, c.id, l.merchant_id, c.order_id, l.status, c.at, l.version, {l.view}::json
  from copies c
 cross join original_listed l
 order by c.n`
)

// What is said once of all copies: balances and stock are sums, and what reads the
// ledger and the outbox has read all of it.
const (
	sumBalances = `
update account_balances
   set debits  = debits * $1,
       credits = credits * $1`

	sumStock = `
update stock
   set available = available - c.sold,
       sold      = stock.sold + c.sold
  from (select 'sku-' || lpad((n % $2::int)::text, 3, '0') as sku,
               count(*)                                    as sold
          from generate_series(1, $1::int) as n
         group by 1) as c
 where c.sku = stock.sku`

	foldedAll = `
update projections
   set txid     = last.txid,
       position = last.position,
       highest  = (select max(position) from ledger_events)
  from (select txid,
               position
          from ledger_events
         order by txid desc, position desc
         limit 1) as last
 where state = 'live'`

	passedAll = `
update outbox_offsets
   set transaction_id = last.transaction_id,
       "offset"       = last."offset"
  from (select transaction_id,
               "offset"
          from outbox
         order by transaction_id desc, "offset" desc
         limit 1) as last`
)
